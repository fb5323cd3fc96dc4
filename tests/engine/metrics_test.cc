#include "engine/metrics.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace pagoda::engine {
namespace {

TEST(MetricsTest, BucketsGrowAndHoldTheEdgesOfOtherServers) {
  const std::vector<std::pair<std::vector<double>, std::vector<double>>> lists = {
      {TimeToFirstTokenBuckets(), {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                   1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560}},
      {InterTokenBuckets(),
       {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}},
      {RequestPhaseBuckets(),
       {.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}},
      {TokenCountBuckets(), {1,   2,   5,   8,   10,   16,   20,   32,   50,   64,   100,  128,
                             200, 256, 500, 512, 1000, 1024, 2000, 2048, 4096, 5000, 8192, 16384}},
      {StepDurationBuckets(), {}},
      {BatchSizeBuckets(), {}}};
  for (const auto& [buckets, edges] : lists) {
    EXPECT_TRUE(std::is_sorted(buckets.begin(), buckets.end()));
    EXPECT_EQ(std::adjacent_find(buckets.begin(), buckets.end()), buckets.end());
    EXPECT_TRUE(std::includes(buckets.begin(), buckets.end(), edges.begin(), edges.end()));
  }
}

TEST(MetricsTest, HistogramCountsByUpperBound) {
  MetricHistogram histogram({1, 2});
  histogram.Observe(1);
  histogram.Observe(1.5, 3);
  histogram.Observe(9);
  EXPECT_EQ(histogram.count(0), 1u);
  EXPECT_EQ(histogram.count(1), 3u);
  EXPECT_EQ(histogram.count(2), 1u);
  EXPECT_DOUBLE_EQ(histogram.sum(), 1 + 4.5 + 9);
}

}  // namespace
}  // namespace pagoda::engine
