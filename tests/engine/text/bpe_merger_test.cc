#include "engine/text/bpe_merger.h"

#include <optional>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pagoda::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The definition, in quadratic time: the pair of lowest rank, the leftmost among equals.
std::vector<TokenId> ReferenceMerge(const MergeTable& merges, std::vector<TokenId> ids) {
  for (;;) {
    std::optional<size_t> best;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const Merge* merge = merges.Find(ids[i], ids[i + 1]);
      if (merge == nullptr) continue;
      if (!best || merge->rank < merges.Find(ids[*best], ids[*best + 1])->rank) best = i;
    }
    if (!best) return ids;
    ids[*best] = merges.Find(ids[*best], ids[*best + 1])->id;
    ids.erase(ids.begin() + *best + 1);
  }
}

// Merges over three letters: each new token joins two earlier ones.
MergeTable RandomMerges(int num_merges, std::mt19937& random) {
  MergeTable merges(num_merges);
  TokenId next = 3;
  for (uint32_t rank = 0; rank < static_cast<uint32_t>(num_merges); ++rank) {
    const TokenId left = random() % next, right = random() % next;
    if (merges.Find(left, right) != nullptr) continue;
    merges.Insert(left, right, {rank, next++});
  }
  return merges;
}

std::vector<TokenId> RandomWord(size_t size, std::mt19937& random) {
  std::vector<TokenId> ids(size);
  for (TokenId& id : ids) id = random() % 3;
  return ids;
}

TEST(BpeMerger, EqualsTheDefinitionForShortAndLongWords) {
  std::mt19937 random(1);
  BpeMerger merger;
  for (int round = 0; round < 200; ++round) {
    const MergeTable merges = RandomMerges(1 + random() % 40, random);
    for (const size_t size : {0, 1, 2, 3, 7, 47, 48, 49, 50, 200}) {
      std::vector<TokenId> ids = RandomWord(size, random);
      const std::vector<TokenId> expected = ReferenceMerge(merges, ids);
      merger.Run(merges, &ids);
      ASSERT_EQ(ids, expected) << "round " << round << ", " << size << " ids";
    }
  }
}

TEST(BpeMerger, TrimKeepsItUsable) {
  std::mt19937 random(2);
  const MergeTable merges = RandomMerges(20, random);
  BpeMerger merger;
  std::vector<TokenId> ids = RandomWord(200'000, random);
  merger.Run(merges, &ids);
  merger.Trim();
  std::vector<TokenId> more = RandomWord(100, random);
  const std::vector<TokenId> expected = ReferenceMerge(merges, more);
  merger.Run(merges, &more);
  EXPECT_EQ(more, expected);
}

TEST(MergeTable, FindsWhatWasInsertedAndNothingElse) {
  MergeTable merges(3);
  EXPECT_EQ(merges.Find(0, 0), nullptr);
  merges.Insert(1, 2, {0, 10});
  merges.Insert(2, 1, {1, 11});
  merges.Insert(1, 2, {5, 12});
  EXPECT_EQ(merges.Find(1, 2)->rank, 5u);
  EXPECT_EQ(merges.Find(1, 2)->id, 12);
  EXPECT_EQ(merges.Find(2, 1)->id, 11);
  EXPECT_EQ(merges.Find(1, 1), nullptr);
}

}  // namespace
}  // namespace pagoda::engine
