#include "daemon/client/bench_plan.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace pagoda::daemon {
namespace {

constexpr IdRange kIds = {100, 300};

std::vector<uint32_t> PromptOf(const BenchOptions& options, int64_t index) {
  const auto request = PlanRequest(options, kIds, index);
  return {request.prompt().token_ids().ids().begin(), request.prompt().token_ids().ids().end()};
}

TEST(PlanDepartures, FixedGapsAreEqual) {
  const std::vector<int64_t> departures =
      PlanDepartures({.num_requests = 4, .rate = 100.0, .arrival = Arrival::kFixed});
  EXPECT_EQ(departures, std::vector<int64_t>({0, 10'000'000, 20'000'000, 30'000'000}));
}

TEST(PlanDepartures, PoissonGapsAreExponential) {
  const std::vector<int64_t> departures =
      PlanDepartures({.num_requests = 20'001, .rate = 1000.0, .seed = 3});
  double sum = 0, sum_of_squares = 0;
  for (size_t i = 1; i < departures.size(); ++i) {
    const double gap_ms = static_cast<double>(departures[i] - departures[i - 1]) * 1e-6;
    ASSERT_GE(gap_ms, 0);
    sum += gap_ms;
    sum_of_squares += gap_ms * gap_ms;
  }
  // Mean 1 and second moment 2, within five standard errors.
  EXPECT_NEAR(sum / 20'000, 1.0, 0.04);
  EXPECT_NEAR(sum_of_squares / 20'000, 2.0, 0.16);
}

TEST(PlanDepartures, AtOnceIsAtOnce) {
  EXPECT_EQ(PlanDepartures({.num_requests = 3, .arrival = Arrival::kAtOnce}),
            std::vector<int64_t>({0, 0, 0}));
}

TEST(PlanRequest, PromptsOfAFileComeInTurnWithTheirLengths) {
  const BenchOptions options = {.output_tokens = 5,
                                .prompts = {{.text = "a", .output_tokens = 9}, {.text = "b"}}};
  EXPECT_EQ(PlanRequest(options, kIds, 0).prompt().text(), "a");
  EXPECT_EQ(PlanRequest(options, kIds, 0).stopping().max_tokens(), 9u);
  EXPECT_EQ(PlanRequest(options, kIds, 1).prompt().text(), "b");
  EXPECT_EQ(PlanRequest(options, kIds, 1).stopping().max_tokens(), 5u);
  EXPECT_EQ(PlanRequest(options, kIds, 2).prompt().text(), "a");
}

TEST(PlanRequest, PromptsDifferInTheirFirstTokens) {
  const BenchOptions options = {.num_requests = 1000, .input_tokens = 40, .seed = 1};
  std::set<std::vector<uint32_t>> starts;
  for (int64_t i = 0; i < 1000; ++i) {
    const std::vector<uint32_t> prompt = PromptOf(options, i);
    ASSERT_EQ(prompt.size(), 40u);
    for (const uint32_t id : prompt) {
      ASSERT_GE(id, kIds.begin);
      ASSERT_LT(id, kIds.end);
    }
    starts.insert({prompt.begin(), prompt.begin() + 8});
  }
  EXPECT_EQ(starts.size(), 1000u);
  EXPECT_EQ(PromptOf(options, 5), PromptOf(options, 5));
  EXPECT_NE(PromptOf(options, 5), PromptOf({.input_tokens = 40, .seed = 2}, 5));
}

TEST(PlanRequest, SharedPrefixIsSharedAndCounts) {
  const BenchOptions options = {.input_tokens = 40, .shared_prefix_tokens = 16, .seed = 1};
  const std::vector<uint32_t> a = PromptOf(options, 0), b = PromptOf(options, 1);
  ASSERT_EQ(a.size(), 40u);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 16, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 16, a.begin() + 24, b.begin() + 16));
}

TEST(PlanRequest, SpreadVariesBothLengths) {
  const BenchOptions options = {.input_tokens = 100, .output_tokens = 10, .spread = 0.5};
  std::set<int> input_lengths, output_lengths;
  for (int64_t i = 0; i < 300; ++i) {
    const auto request = PlanRequest(options, kIds, i);
    input_lengths.insert(request.prompt().token_ids().ids_size());
    output_lengths.insert(static_cast<int>(request.stopping().max_tokens()));
  }
  EXPECT_GE(*input_lengths.begin(), 50);
  EXPECT_LE(*input_lengths.rbegin(), 150);
  EXPECT_GT(input_lengths.size(), 60u);
  EXPECT_EQ(*output_lengths.begin(), 5);
  EXPECT_EQ(*output_lengths.rbegin(), 15);
}

TEST(PlanRequest, AsksForExactlyTheTokens) {
  const auto request =
      PlanRequest({.output_tokens = 9, .text = "hi", .temperature = 0.0f}, kIds, 0);
  EXPECT_EQ(request.prompt().text(), "hi");
  EXPECT_EQ(request.stopping().max_tokens(), 9u);
  EXPECT_TRUE(request.stopping().ignore_eos());
  EXPECT_TRUE(request.sampling().has_temperature());
  EXPECT_FALSE(PlanRequest({}, kIds, 0).sampling().has_temperature());
}

TEST(PromptIds, IsInsideAnyVocabulary) {
  for (const uint32_t vocab : {8u, 270u, 128256u}) {
    const IdRange ids = PromptIds(vocab);
    EXPECT_LE(ids.end, vocab);
    EXPECT_GE(ids.end - ids.begin, 2u);
  }
}

}  // namespace
}  // namespace pagoda::daemon
