#include "engine/queue_rate.h"

#include <gtest/gtest.h>

namespace pagoda::engine {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(QueueRateTest, IsUnknownBeforeASecondOfQueue) {
  QueueRate rate;
  EXPECT_FALSE(rate.TimeOf(1).has_value());
  rate.Begin(0);
  rate.NoteLeft(5, kSecond / 2);
  EXPECT_FALSE(rate.TimeOf(1).has_value());
}

TEST(QueueRateTest, FollowsWhatLeaves) {
  QueueRate rate;
  rate.Begin(0);
  for (int i = 1; i <= 10; ++i) rate.NoteLeft(1, i * kSecond / 10);
  ASSERT_TRUE(rate.TimeOf(20).has_value());
  EXPECT_NEAR(*rate.TimeOf(20) * 1e-9, 2.0, 1e-6);
  // Twice as fast for a second: half of it is believed.
  for (int i = 1; i <= 10; ++i) rate.NoteLeft(2, kSecond + i * kSecond / 10);
  EXPECT_NEAR(*rate.TimeOf(30) * 1e-9, 2.0, 1e-6);
}

TEST(QueueRateTest, IdleTimesDoNotCount) {
  QueueRate rate;
  rate.Begin(0);
  rate.NoteLeft(10, kSecond);
  rate.End();
  rate.NoteLeft(1, 50 * kSecond);
  rate.Begin(100 * kSecond);
  rate.NoteLeft(10, 101 * kSecond);
  EXPECT_NEAR(*rate.TimeOf(10) * 1e-9, 1.0, 1e-6);
}

}  // namespace
}  // namespace pagoda::engine
