#include "parallel/step_watch.h"

#include <limits>

#include "gtest/gtest.h"

namespace pagoda::parallel {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecond = 1'000 * kMs;

void Observe(StepWatch& watch, int num_steps, int64_t num_tokens, int64_t duration_ns) {
  for (int i = 0; i < num_steps; ++i) watch.Observe(num_tokens, duration_ns);
}

TEST(StepWatchTest, KnowsNothingAtFirst) {
  StepWatch watch(120 * kSecond);
  EXPECT_EQ(watch.LimitNs(1), 120 * kSecond);
  Observe(watch, 5, 1, kMs);
  EXPECT_EQ(watch.LimitNs(1), 120 * kSecond);
}

TEST(StepWatchTest, ShortStepsGetTwoSeconds) {
  StepWatch watch(120 * kSecond);
  Observe(watch, 100, 8, 3 * kMs);
  EXPECT_EQ(watch.LimitNs(8), 2 * kSecond);
  EXPECT_EQ(watch.LimitNs(15), 2 * kSecond);
}

TEST(StepWatchTest, LongStepsGetFiveTimesWhatTheyTake) {
  StepWatch watch(3600 * kSecond);
  Observe(watch, 1000, 1, 4 * kSecond);
  EXPECT_GE(watch.LimitNs(1), 20 * kSecond);
  EXPECT_LE(watch.LimitNs(1), 24 * kSecond);
  // One in a hundred that takes longer does not count; more do.
  Observe(watch, 5, 1, 40 * kSecond);
  EXPECT_LE(watch.LimitNs(1), 24 * kSecond);
  Observe(watch, 20, 1, 40 * kSecond);
  EXPECT_GE(watch.LimitNs(1), 200 * kSecond);
}

TEST(StepWatchTest, ASizeThatWasNotSeenIsJudgedByItsNeighbours) {
  StepWatch watch(3600 * kSecond);
  Observe(watch, 100, 1, kSecond);
  // Up to twice the tokens of its power of two.
  EXPECT_GE(watch.LimitNs(512), 512 * 5 * kSecond);
  Observe(watch, 100, 1024, 10 * kSecond);
  EXPECT_LE(watch.LimitNs(512), 61 * kSecond);
  EXPECT_LE(watch.LimitNs(1), 6 * kSecond);
}

TEST(StepWatchTest, NeverExceedsTheConfiguredLimit) {
  StepWatch watch(kSecond);
  Observe(watch, 100, 1, kMs);
  EXPECT_EQ(watch.LimitNs(1), kSecond);
  Observe(watch, 100, 1, 100 * kSecond);
  EXPECT_EQ(watch.LimitNs(1), kSecond);
}

TEST(StepWatchTest, NoLimitIsNoLimit) {
  StepWatch watch(0);
  Observe(watch, 100, 1, kMs);
  EXPECT_EQ(watch.LimitNs(1), std::numeric_limits<int64_t>::max());
}

TEST(StepWatchTest, AStepThatWasGivenUpMakesItPatientForAWhile) {
  StepWatch watch(120 * kSecond);
  Observe(watch, 100, 1, kMs);
  watch.NoteGivenUp();
  EXPECT_EQ(watch.LimitNs(1), 120 * kSecond);
  Observe(watch, 255, 1, kMs);
  EXPECT_EQ(watch.LimitNs(1), 120 * kSecond);
  Observe(watch, 1, 1, kMs);
  EXPECT_EQ(watch.LimitNs(1), 2 * kSecond);
}

TEST(StepWatchTest, ForgetsHowItOnceWas) {
  StepWatch watch(3600 * kSecond);
  Observe(watch, 2000, 1, 10 * kSecond);
  Observe(watch, 50'000, 1, kMs);
  EXPECT_EQ(watch.LimitNs(1), 2 * kSecond);
}

}  // namespace
}  // namespace pagoda::parallel
