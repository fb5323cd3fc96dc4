#include "engine/model/thought_budgets.h"

#include "gtest/gtest.h"

namespace pagoda::engine {
namespace {

// 0 "<think>", 1 "</think>", 2 "a", 3 "</", 4 "think", 5 ">", 6 " ", 7 "<", 8 special: "[/T]", 9
// ">b".
class ThoughtBudgetsTest : public ::testing::Test {
 protected:
  ThoughtBudgetsTest()
      : trie_({{"<think>", 0},
               {"</think>", 1},
               {"a", 2},
               {"</", 3},
               {"think", 4},
               {">", 5},
               {" ", 6},
               {"<", 7},
               {">b", 9}}) {
    slot_.live = true;
    slot_.generation = 1;
    slot_.tokens = {2};
    slot_.num_prompt_tokens = 1;
    Tags("<think>", "</think>", {1});
  }

  void Tags(const char* open, const char* close, std::vector<uint32_t> close_ids) {
    internal::v1::ThoughtBudget& budget = *slot_.sampling.mutable_thoughts();
    budget.clear_tags();
    internal::v1::ThoughtTags& tags = *budget.add_tags();
    tags.set_open(open);
    tags.set_close(close);
    for (const uint32_t id : close_ids) tags.add_close_token_ids(id);
  }
  void SetMax(uint32_t max_tokens, bool is_open = false) {
    slot_.sampling.mutable_thoughts()->set_max_tokens(max_tokens);
    slot_.sampling.mutable_thoughts()->set_is_open(is_open);
  }
  // What has to come next, -1: anything may.
  int Forced() {
    const auto position = static_cast<int32_t>(slot_.tokens.size());
    if (!budgets_.MayForce(0, slot_, position)) return -1;
    return budgets_.Forced(0, slot_, trie_).value_or(-1);
  }
  // The model says `said` as long as it may, for `count` tokens in all.
  std::vector<TokenId> Generate(const std::vector<TokenId>& said, size_t count) {
    std::vector<TokenId> output;
    for (size_t i = 0; i < count; ++i) {
      const int forced = Forced();
      output.push_back(forced >= 0 ? forced : said[i % said.size()]);
      slot_.tokens.push_back(output.back());
    }
    return output;
  }

  using Ids = std::vector<TokenId>;

  guided::TokenTrie trie_;
  ThoughtBudgets budgets_{1};
  SlotState slot_;
};

TEST_F(ThoughtBudgetsTest, ClosesAfterTheBudget) {
  SetMax(3);
  EXPECT_EQ(Generate({0, 2, 2, 2, 2, 2, 2, 2}, 8), Ids({0, 2, 2, 2, 1, 2, 2, 2}));
}

TEST_F(ThoughtBudgetsTest, ZeroClosesAtOnce) {
  SetMax(0);
  EXPECT_EQ(Generate({0, 2, 2}, 4), Ids({0, 1, 2, 0}));
}

TEST_F(ThoughtBudgetsTest, WhoClosesInTimeIsLeftAlone) {
  SetMax(3);
  EXPECT_EQ(Generate({0, 2, 2, 1, 2, 2, 2, 2}, 8), Ids({0, 2, 2, 1, 2, 2, 2, 2}));
  EXPECT_FALSE(budgets_.MayForce(0, slot_, 100));
}

TEST_F(ThoughtBudgetsTest, OutputWithoutThoughtsIsLeftAlone) {
  SetMax(1);
  EXPECT_EQ(Generate({6, 2, 0, 2, 2, 2}, 6), Ids({6, 2, 0, 2, 2, 2}));
}

TEST_F(ThoughtBudgetsTest, BlanksMayComeBeforeTheTag) {
  SetMax(1);
  EXPECT_EQ(Generate({6, 6, 0, 2, 2, 2}, 6), Ids({6, 6, 0, 2, 1, 2}));
}

TEST_F(ThoughtBudgetsTest, TheTagIsFoundHoweverTokensCutIt) {
  SetMax(2);
  // "<" "think" ">b": the rest of a token that ends the tag is no token of thoughts.
  EXPECT_EQ(Generate({7, 4, 9, 2, 2, 2, 2}, 7), Ids({7, 4, 9, 2, 2, 1, 2}));
}

TEST_F(ThoughtBudgetsTest, ClosesWithSeveralTokensAndFindsThemAgain) {
  Tags("<think>", "</think>", {3, 4, 5});
  SetMax(2);
  EXPECT_EQ(Generate({0, 2, 2, 2, 2, 2, 2, 2}, 8), Ids({0, 2, 2, 3, 4, 5, 2, 2}));
  // The model closes by itself with other tokens than the tokenizer would.
  slot_.tokens = {2};
  slot_.generation = 2;
  EXPECT_EQ(Generate({0, 1, 2, 2, 2}, 5), Ids({0, 1, 2, 2, 2}));
}

TEST_F(ThoughtBudgetsTest, AHalfTagBeforeTheForcedOneIsNone) {
  Tags("<think>", "</think>", {3, 4, 5});
  SetMax(2);
  EXPECT_EQ(Generate({0, 3, 4, 2, 2, 2, 2}, 7), Ids({0, 3, 4, 3, 4, 5, 2}));
}

TEST_F(ThoughtBudgetsTest, ThePromptMayHaveOpenedIt) {
  SetMax(2, /*is_open=*/true);
  EXPECT_EQ(Generate({2, 2, 2, 2}, 5), Ids({2, 2, 1, 2, 2}));
}

TEST_F(ThoughtBudgetsTest, ASpecialTokenIsATagToo) {
  Tags("<think>", "[/T]", {8});
  SetMax(5);
  EXPECT_EQ(Generate({0, 2, 8, 2, 2, 2, 2, 2, 2}, 9), Ids({0, 2, 8, 2, 2, 2, 2, 2, 2}));
}

TEST_F(ThoughtBudgetsTest, IsTheSameAfterAPreemption) {
  Tags("<think>", "</think>", {3, 4, 5});
  SetMax(3);
  const Ids whole = Generate({0, 2, 2, 2, 2, 2, 2, 2, 2}, 9);
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    ++slot_.generation;
    slot_.tokens = {2};
    slot_.tokens.insert(slot_.tokens.end(), whole.begin(), whole.begin() + static_cast<long>(cut));
    Ids rest = Generate({2}, whole.size() - cut);
    if (cut == 0) continue;  // it has not opened its thoughts then
    EXPECT_EQ(rest, Ids(whole.begin() + static_cast<long>(cut), whole.end())) << cut;
  }
}

TEST_F(ThoughtBudgetsTest, OnlyWhoCouldHaveUsedItUpHasToBeKnown) {
  SetMax(10);
  EXPECT_FALSE(budgets_.MayForce(0, slot_, 10));
  EXPECT_TRUE(budgets_.MayForce(0, slot_, 11));
  slot_.sampling.clear_thoughts();
  EXPECT_FALSE(budgets_.MayForce(0, slot_, 11));
}

}  // namespace
}  // namespace pagoda::engine
