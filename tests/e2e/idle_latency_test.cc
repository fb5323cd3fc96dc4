// The first call after a quiet while. gRPC's idle threads sleep 100 ms in every 1.1 s unless that
// is prevented, so that one call in ten waits for up to that long.

#include <algorithm>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e::idle_latency_test {
namespace {

TEST(IdleLatency, FirstMessageComesAtOnceAtAnyMomentOfIdleness) {
  auto daemon = TestDaemon::Start({.flags = {"--device=sim", "--sim-base-us=0"}});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  v1::InferenceService::Stub& stub = (*daemon)->stub();
  ASSERT_TRUE(Generate(stub, TextRequest("a", 1)).status.ok());
  std::vector<absl::Duration> latencies;
  for (int i = 0; i < 10; ++i) {
    // Right into the sleep, were there one: it begins a second after the last event.
    absl::SleepFor(absl::Milliseconds(1010 + i * 3));
    const absl::Time start = absl::Now();
    OpenStream stream(stub, TextRequest("a", 1));
    ASSERT_TRUE(stream.Read());
    latencies.push_back(absl::Now() - start);
    EXPECT_TRUE(stream.Finish().ok());
  }
  std::sort(latencies.begin(), latencies.end());
  // With the sleep the median is 60 to 90 ms; without, a few.
  EXPECT_LT(latencies[latencies.size() / 2], absl::Milliseconds(40));
}

}  // namespace
}  // namespace pagoda::e2e::idle_latency_test
