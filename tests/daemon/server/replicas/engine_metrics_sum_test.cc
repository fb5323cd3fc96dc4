#include "daemon/server/replicas/engine_metrics_sum.h"

#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

using engine::EngineMetrics;

void Count(EngineMetrics* metrics, uint64_t n) {
  metrics->requests_running.Set(static_cast<double>(n));
  metrics->requests_finished[1].Add(n);
  metrics->generation_tokens.Add(2 * n);
  metrics->requests_given_away.Add(n);
  metrics->step_tokens.Observe(3, n);
  metrics->devices[1].busy_ns.Add(n);
  metrics->cancel_to_free_seconds.Observe(1e9);
}

TEST(EngineMetricsReaderTest, OneIsReadAsItIs) {
  EngineMetrics one;
  Count(&one, 5);
  const EngineMetricsReader reader(&one);
  const EngineMetrics* seen = nullptr;
  reader.With([&](const EngineMetrics& metrics) { seen = &metrics; });
  EXPECT_EQ(seen, &one);
}

TEST(EngineMetricsReaderTest, SeveralAreAddedUp) {
  EngineMetrics one, two;
  Count(&one, 5);
  Count(&two, 7);
  const EngineMetricsReader reader({&one, &two});
  for (int scrape = 0; scrape < 2; ++scrape) {
    reader.With([](const EngineMetrics& sum) {
      EXPECT_EQ(sum.requests_running.value(), 12);
      EXPECT_EQ(sum.requests_finished[1].value(), 12u);
      EXPECT_EQ(sum.requests_finished[0].value(), 0u);
      EXPECT_EQ(sum.generation_tokens.value(), 24u);
      EXPECT_EQ(sum.requests_given_away.value(), 12u);
      EXPECT_EQ(sum.step_tokens.sum(), 36);
      EXPECT_EQ(sum.devices[1].busy_ns.value(), 12u);
      EXPECT_EQ(sum.devices[0].busy_ns.value(), 0u);
      uint64_t num_steps = 0, num_cancels = 0;
      for (size_t i = 0; i <= sum.step_tokens.upper_bounds().size(); ++i)
        num_steps += sum.step_tokens.count(i);
      EXPECT_EQ(num_steps, 12u);
      for (size_t i = 0; i <= sum.cancel_to_free_seconds.upper_bounds().size(); ++i)
        num_cancels += sum.cancel_to_free_seconds.count(i);
      EXPECT_EQ(num_cancels, 2u);
      EXPECT_EQ(sum.cancel_to_free_seconds.count(sum.cancel_to_free_seconds.upper_bounds().size()),
                2u);
    });
  }
}

}  // namespace
}  // namespace pagoda::daemon
