#include "engine/beam_search.h"

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pagoda::engine {
namespace {

using Entry = TokenLogprobs::Entry;
using ::testing::ElementsAre;

constexpr TokenId kEos = 0;

// Runs a search over a tree: what may follow each text.
struct TreeSearch {
  TreeSearch(const BeamParams& params, int32_t max_tokens)
      : rules({.eos_token_ids = {kEos}}, max_tokens),
        search(params, StopChecker(&rules, nullptr, true), 1) {}

  void Run() {
    std::map<int32_t, std::vector<TokenId>> beams = {{0, {}}};
    while (!beams.empty() && num_rounds < 100) {
      ++num_rounds;
      for (const auto& [index, tokens] : beams) search.Take(index, tree[tokens]);
      std::map<int32_t, std::vector<TokenId>> next;
      for (const BeamSearch::Child& child : search.Advance()) {
        std::vector<TokenId> tokens = beams.at(child.parent);
        tokens.push_back(child.token);
        next[child.index] = tokens;
      }
      beams = std::move(next);
    }
  }
  std::vector<TokenId> Tokens(size_t i) const {
    std::vector<TokenId> tokens;
    for (const TokenLogprobs& logprobs : search.TokensOf(search.ended()[i]))
      tokens.push_back(logprobs.token.token);
    return tokens;
  }

  const StopRules rules;
  BeamSearch search;
  std::map<std::vector<TokenId>, std::vector<Entry>> tree;
  int num_rounds = 0;
};

// B030: two texts of 1 and 4 tokens with known log-probabilities; what was before them is not
// counted, so that only the penalty decides.
TEST(BeamSearchTest, B030_LengthIsThatOfTheOutput) {
  for (const auto& [penalty, best_length] : std::map<float, size_t>{{0, 1}, {1, 4}, {2, 4}}) {
    TreeSearch tree({.width = 2, .length_penalty = penalty}, 10);
    tree.tree[{}] = {{kEos, -1.0f}, {1, -1.1f}};
    tree.tree[{1}] = {{2, -0.2f}, {3, -9.0f}};
    tree.tree[{1, 2}] = {{3, -0.2f}, {4, -9.0f}};
    tree.tree[{1, 2, 3}] = {{kEos, -0.2f}, {4, -9.0f}};
    tree.Run();
    ASSERT_EQ(tree.search.ended().size(), 2u);
    EXPECT_EQ(tree.Tokens(0).size(), best_length) << penalty;
    for (const BeamSearch::Ended& ended : tree.search.ended()) {
      const double sum = ended.num_tokens == 1 ? -1.0 : -1.1 - 0.6;
      EXPECT_NEAR(ended.score, sum / std::pow(ended.num_tokens, penalty), 1e-6);
    }
  }
}

// B031: an ended beam scores -1.0 and an open one can still reach -0.9.
TEST(BeamSearchTest, B031_EarlyStoppingDecidesWhetherABetterOneIsAwaited) {
  for (const bool early_stopping : {false, true}) {
    TreeSearch tree({.width = 2, .length_penalty = 0.0f, .early_stopping = early_stopping}, 10);
    tree.tree[{}] = {{1, -0.5f}, {2, -0.6f}};
    tree.tree[{1}] = {{kEos, -0.5f}, {3, -2.0f}};
    tree.tree[{2}] = {{4, -0.1f}, {kEos, -0.7f}};
    tree.tree[{2, 4}] = {{5, -0.1f}, {6, -3.0f}};
    tree.tree[{2, 4, 5}] = {{kEos, -0.1f}, {6, -3.0f}};
    tree.tree[{1, 3}] = {{6, -1.0f}};
    tree.Run();
    // The second round ends {1, EOS} at -1.0 alone: {2, EOS} is third there.
    EXPECT_THAT(tree.Tokens(0), ElementsAre(2, 4, 5, kEos));
    EXPECT_NEAR(tree.search.ended()[0].score, -0.9, 1e-6);
    EXPECT_THAT(tree.Tokens(1), ElementsAre(1, kEos));
    EXPECT_NEAR(tree.search.ended()[1].score, -1.0, 1e-6);
  }
  // Two have ended: early stopping is content with them.
  for (const bool early_stopping : {false, true}) {
    TreeSearch tree({.width = 2, .length_penalty = 1.0f, .early_stopping = early_stopping}, 10);
    tree.tree[{}] = {{1, -0.5f}, {2, -0.5f}};
    tree.tree[{1}] = {{kEos, -0.5f}, {3, -5.0f}};
    tree.tree[{2}] = {{3, -0.4f}, {4, -6.0f}};
    tree.tree[{2, 3}] = {{4, -0.3f}, {kEos, -2.1f}};
    tree.tree[{1, 3}] = {{4, -9.0f}, {5, -9.0f}};
    tree.tree[{2, 3, 4}] = {{kEos, -0.1f}, {5, -9.0f}};
    tree.Run();
    EXPECT_EQ(tree.num_rounds, early_stopping ? 3 : 4);
    if (early_stopping) {
      EXPECT_THAT(tree.Tokens(0), ElementsAre(1, kEos));
    } else {
      EXPECT_THAT(tree.Tokens(0), ElementsAre(2, 3, 4, kEos));
      EXPECT_NEAR(tree.search.ended()[0].score, -1.3 / 4, 1e-6);
    }
  }
}

TEST(BeamSearchTest, TheLengthEndsEveryBeam) {
  TreeSearch tree({.width = 3}, 2);
  for (const TokenId first : {1, 2, 3}) {
    tree.tree[{}].push_back({first, -1.0f * static_cast<float>(first)});
    tree.tree[{first}] = {{4, -0.5f}, {5, -0.6f}, {6, -0.7f}};
  }
  tree.Run();
  EXPECT_EQ(tree.num_rounds, 2);
  ASSERT_EQ(tree.search.ended().size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(tree.search.ended()[i].match.reason, FinishReason::kLength);
    EXPECT_EQ(tree.Tokens(i)[0], 1);
  }
  const std::vector<TokenLogprobs> tokens = tree.search.TokensOf(tree.search.ended()[1]);
  EXPECT_EQ(tokens[1].token.token, 5);
  EXPECT_EQ(tokens[1].rank, 2);
  ASSERT_EQ(tokens[1].top.size(), 1u);
  EXPECT_EQ(tokens[1].top[0].token, 4);
}

TEST(BeamSearchTest, FewerContinuationsThanBeams) {
  TreeSearch tree({.width = 4}, 10);
  tree.tree[{}] = {{1, -1.0f}};
  tree.tree[{1}] = {{2, -1.0f}, {kEos, -2.0f}};
  tree.Run();
  // Nothing may follow {1, 2}: that beam is gone.
  ASSERT_EQ(tree.search.ended().size(), 1u);
  EXPECT_THAT(tree.Tokens(0), ElementsAre(1, kEos));
}

TEST(BeamSearchTest, EndsAsItIsWhenNothingCanBeComputed) {
  TreeSearch tree({.width = 2}, 10);
  tree.search.Take(0, {{1, -1.0f}, {2, -3.0f}});
  EXPECT_EQ(tree.search.Advance().size(), 2u);
  tree.search.EndAll();
  EXPECT_THAT(tree.Tokens(0), ElementsAre(1));
  EXPECT_THAT(tree.Tokens(1), ElementsAre(2));
}

}  // namespace
}  // namespace pagoda::engine
