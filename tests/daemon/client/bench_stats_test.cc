#include "daemon/client/bench_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pagoda::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr int64_t kMs = 1'000'000;

TEST(Summarize, PercentilesInterpolate) {
  const Distribution d = Summarize({4, 1, 3, 2, 5});
  EXPECT_EQ(d.count, 5);
  EXPECT_DOUBLE_EQ(d.mean, 3);
  EXPECT_DOUBLE_EQ(d.p50, 3);
  EXPECT_DOUBLE_EQ(d.p90, 4.6);
  EXPECT_DOUBLE_EQ(d.p99, 4.96);
  EXPECT_DOUBLE_EQ(d.max, 5);
  EXPECT_DOUBLE_EQ(Summarize({7}).p99, 7);
  EXPECT_DOUBLE_EQ(Summarize({1, 2}).p50, 1.5);
  EXPECT_EQ(Summarize({}).count, 0);
  EXPECT_DOUBLE_EQ(Summarize({}).p99, 0);
}

// Due at 10 ms, left at 12, first token at 30, then one message of two tokens at 50 and one at 60;
// ended at 61.
RequestOutcome Good() {
  return {.due_ns = 10 * kMs,
          .sent_ns = 12 * kMs,
          .first_ns = 30 * kMs,
          .last_ns = 60 * kMs,
          .end_ns = 61 * kMs,
          .num_prompt_tokens = 7,
          .num_cached_tokens = 2,
          .num_output_tokens = 4,
          .num_asked_tokens = 4,
          .gaps_ms = {20, 10}};
}

TEST(Aggregate, LatenciesCountFromWhenARequestWasDue) {
  const BenchResult result = Aggregate({Good()}, {});
  EXPECT_EQ(result.num_ok, 1);
  EXPECT_EQ(result.num_failed, 0);
  EXPECT_EQ(result.num_short, 0);
  EXPECT_DOUBLE_EQ(result.seconds, 0.051);
  EXPECT_DOUBLE_EQ(result.ttft_ms.mean, 20);
  EXPECT_DOUBLE_EQ(result.tpot_ms.mean, 10);
  EXPECT_DOUBLE_EQ(result.itl_ms.mean, 15);
  EXPECT_EQ(result.itl_ms.count, 2);
  EXPECT_DOUBLE_EQ(result.e2e_ms.mean, 51);
  EXPECT_DOUBLE_EQ(result.late_ms.mean, 2);
  EXPECT_NEAR(result.mean_concurrency, 49.0 / 51.0, 1e-12);
  EXPECT_EQ(result.num_prompt_tokens, 7);
  EXPECT_EQ(result.num_cached_tokens, 2);
  EXPECT_EQ(result.num_output_tokens, 4);
}

TEST(Aggregate, GoodRequestsKeepEveryLimit) {
  // TTFT 20 ms, TPOT 10, E2E 51.
  const auto num_good = [](const LatencyLimits& limits) {
    return Aggregate({Good()}, {}, limits).num_good;
  };
  EXPECT_EQ(num_good({}), 1);
  EXPECT_EQ(num_good({.ttft_ms = 20, .tpot_ms = 10, .e2e_ms = 51}), 1);
  EXPECT_EQ(num_good({.ttft_ms = 19.9}), 0);
  EXPECT_EQ(num_good({.tpot_ms = 9.9}), 0);
  EXPECT_EQ(num_good({.e2e_ms = 50.9}), 0);
  RequestOutcome failed = Good();
  failed.failure = "UNAVAILABLE";
  RequestOutcome silent = Good();
  silent.first_ns = 0;
  EXPECT_EQ(Aggregate({failed}, {}).num_good, 0);
  EXPECT_EQ(Aggregate({silent}, {}, {.tpot_ms = 1, .e2e_ms = 100}).num_good, 1);
  EXPECT_EQ(Aggregate({silent}, {}, {.ttft_ms = 1000}).num_good, 0);
}

TEST(Aggregate, FailuresAreCountedByKindAndHaveNoLatency) {
  RequestOutcome full = {
      .failure = "RESOURCE_EXHAUSTED/QUEUE_FULL", .due_ns = 0, .sent_ns = 0, .end_ns = kMs};
  RequestOutcome broken = Good();
  broken.failure = "UNAVAILABLE";
  const BenchResult result = Aggregate({full, Good(), full, broken}, {});
  EXPECT_EQ(result.num_ok, 1);
  EXPECT_EQ(result.num_failed, 3);
  EXPECT_THAT(result.failures,
              ElementsAre(Pair("RESOURCE_EXHAUSTED/QUEUE_FULL", 2), Pair("UNAVAILABLE", 1)));
  EXPECT_EQ(result.ttft_ms.count, 1);
  EXPECT_EQ(result.e2e_ms.count, 1);
  EXPECT_EQ(result.num_output_tokens, 8);
}

TEST(Aggregate, ShortAndEmptyAnswers) {
  RequestOutcome one = Good();
  one.num_output_tokens = 1;
  one.last_ns = one.first_ns;
  one.gaps_ms.clear();
  RequestOutcome none = Good();
  none.first_ns = none.last_ns = 0;
  none.num_output_tokens = 0;
  none.gaps_ms.clear();
  const BenchResult result = Aggregate({one, none}, {});
  EXPECT_EQ(result.num_short, 2);
  EXPECT_EQ(result.ttft_ms.count, 1);
  EXPECT_EQ(result.tpot_ms.count, 0);
  EXPECT_EQ(result.e2e_ms.count, 2);
  EXPECT_EQ(Aggregate({}, {}).num_ok, 0);
}

TEST(ClientWarnings, SayWhenTheClientIsTheBottleneck) {
  EXPECT_THAT(ClientWarnings(Aggregate({Good()}, {.busiest_thread = 0.5})), IsEmpty());
  EXPECT_THAT(ClientWarnings(Aggregate({Good()}, {.busiest_thread = 0.95})),
              ElementsAre(HasSubstr("95 %")));
  RequestOutcome late = Good();
  late.sent_ns = late.due_ns + 15 * kMs;
  EXPECT_THAT(ClientWarnings(Aggregate({late}, {})), ElementsAre(HasSubstr("15.0 ms late")));
}

}  // namespace
}  // namespace pagoda::daemon
