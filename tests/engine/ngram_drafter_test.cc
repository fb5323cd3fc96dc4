#include "engine/ngram_drafter.h"

#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pagoda::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

TEST(NgramDrafterTest, DraftsWhatFollowedTheLastOccurrence) {
  NgramDrafter drafter(8);
  drafter.Add({1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 7, 8, 6, 5, 1, 2});
  drafter.Propose();
  EXPECT_THAT(drafter.draft(), IsEmpty());
  drafter.Add(3);
  drafter.Propose();
  // As long as the text before is alike.
  EXPECT_THAT(drafter.draft(), ElementsAre(7, 8, 6));
}

TEST(NgramDrafterTest, ARepetitionGoesOnWithItself) {
  NgramDrafter drafter(16);
  drafter.Add({4, 4, 4, 4});
  drafter.Propose();
  EXPECT_THAT(drafter.draft(), ElementsAre(4, 4, 4));
  drafter.Add({1, 2, 1, 2, 1, 2});
  drafter.Propose();
  EXPECT_THAT(drafter.draft(), ElementsAre(1, 2, 1, 2));
}

TEST(NgramDrafterTest, AcceptedDraftsGrowUpToTheBound) {
  NgramDrafter drafter(10);
  for (int i = 0; i < 20; ++i) drafter.Add({1, 2, 3, 4, 5});
  size_t longest = 0;
  for (int i = 0; i < 10; ++i) {
    drafter.Propose();
    const std::vector<TokenId> draft(drafter.draft().begin(), drafter.draft().end());
    ASSERT_FALSE(draft.empty());
    longest = draft.size();
    drafter.NoteResult(static_cast<int32_t>(draft.size()), static_cast<int32_t>(draft.size()));
    drafter.Add(draft);
    drafter.Add(1 + static_cast<TokenId>(draft.back() % 5));
  }
  EXPECT_EQ(longest, 10u);
}

TEST(NgramDrafterTest, DraftsThatFailBecomeRare) {
  // The same three tokens again and again, and after them never the same.
  NgramDrafter drafter(8);
  int num_drafts = 0;
  constexpr int kNumTokens = 20000;
  for (int i = 0; i < kNumTokens / 5; ++i) {
    for (const TokenId token : {1, 2, 3, 1000 + 2 * i, 1001 + 2 * i}) {
      const bool was_drafted = !drafter.draft().empty();
      if (was_drafted) {
        ++num_drafts;
        drafter.Add(token);
        drafter.NoteResult(static_cast<int32_t>(drafter.draft().size()), 0);
      } else {
        drafter.Add(token);
      }
      drafter.Propose();
    }
  }
  EXPECT_GT(num_drafts, 3);
  EXPECT_LT(num_drafts, kNumTokens / 200);
}

TEST(NgramDrafterTest, WaitsInVainBecomeRareToo) {
  NgramDrafter drafter(8);
  int num_waits = 0;
  constexpr int kNumTokens = 20000;
  // Planned ahead: the token after a draft is known before it can be tried, and it is another one.
  for (int i = 0; i < kNumTokens / 4; ++i) {
    for (const TokenId token : {1, 2, 3, 1000 + i}) {
      drafter.Add(token);
      drafter.Propose();
      num_waits += drafter.draft().empty() ? 0 : 1;
    }
  }
  EXPECT_LT(num_waits, kNumTokens / 200);
}

TEST(NgramDrafterTest, FindsTheLastOccurrenceInALongText) {
  std::mt19937 random(3);
  NgramDrafter drafter(16);
  std::vector<TokenId> text;
  for (int i = 0; i < 5000; ++i) {
    const TokenId token = static_cast<TokenId>(random() % 12);
    text.push_back(token);
    drafter.Add(token);
    drafter.Propose();
    // By looking everywhere.
    size_t end = 0;
    for (size_t at = 3; at < text.size() && text.size() > 3; ++at)
      if (std::equal(text.end() - 3, text.end(), text.begin() + static_cast<ptrdiff_t>(at) - 3))
        end = at;
    if (drafter.draft().empty()) continue;
    ASSERT_NE(end, 0u);
    std::vector<TokenId> expected;
    for (size_t j = 0; j < drafter.draft().size(); ++j)
      expected.push_back(end + j < text.size() ? text[end + j] : expected[end + j - text.size()]);
    ASSERT_THAT(drafter.draft(), ElementsAreArray(expected));
    // Nothing is learnt, so that it goes on drafting.
    drafter.NoteResult(1, 1);
  }
}

}  // namespace
}  // namespace pagoda::engine
