#include "parallel/step_watch.h"

#include <limits>

#include "gtest/gtest.h"

namespace pagoda::parallel {
namespace {

constexpr int64_t kOneMs = 1'000'000;
constexpr int64_t kOneSecond = 1'000 * kOneMs;

void Observe(StepWatch& watch, int num_steps, int64_t num_tokens, int64_t duration_ns) {
  for (int i = 0; i < num_steps; ++i) watch.Observe(num_tokens, duration_ns);
}

TEST(StepWatchTest, KnowsNothingAtFirst) {
  StepWatch watch(120 * kOneSecond);
  EXPECT_EQ(watch.LimitNs(1), 120 * kOneSecond);
  Observe(watch, 3, 1, kOneMs);
  EXPECT_EQ(watch.LimitNs(1), 120 * kOneSecond);
}

TEST(StepWatchTest, ShortStepsGetTwoSeconds) {
  StepWatch watch(120 * kOneSecond);
  Observe(watch, 100, 8, 3 * kOneMs);
  EXPECT_EQ(watch.LimitNs(8), 2 * kOneSecond);
  EXPECT_EQ(watch.LimitNs(15), 2 * kOneSecond);
}

TEST(StepWatchTest, LongStepsGetFiveTimesWhatTheyTake) {
  StepWatch watch(3600 * kOneSecond);
  Observe(watch, 1000, 1, 4 * kOneSecond);
  EXPECT_GE(watch.LimitNs(1), 20 * kOneSecond);
  EXPECT_LE(watch.LimitNs(1), 24 * kOneSecond);
  // One in a hundred that takes longer does not count; more do.
  Observe(watch, 5, 1, 40 * kOneSecond);
  EXPECT_LE(watch.LimitNs(1), 24 * kOneSecond);
  Observe(watch, 20, 1, 40 * kOneSecond);
  EXPECT_GE(watch.LimitNs(1), 200 * kOneSecond);
}

TEST(StepWatchTest, ASizeThatWasNotSeenIsJudgedByItsNeighbours) {
  StepWatch watch(3600 * kOneSecond);
  Observe(watch, 100, 1, kOneSecond);
  // Up to twice the tokens of its power of two.
  EXPECT_GE(watch.LimitNs(512), 512 * 5 * kOneSecond);
  Observe(watch, 100, 1024, 10 * kOneSecond);
  EXPECT_LE(watch.LimitNs(512), 61 * kOneSecond);
  EXPECT_LE(watch.LimitNs(1), 6 * kOneSecond);
}

TEST(StepWatchTest, NeverExceedsTheConfiguredLimit) {
  StepWatch watch(kOneSecond);
  Observe(watch, 100, 1, kOneMs);
  EXPECT_EQ(watch.LimitNs(1), kOneSecond);
  Observe(watch, 100, 1, 100 * kOneSecond);
  EXPECT_EQ(watch.LimitNs(1), kOneSecond);
}

TEST(StepWatchTest, LateIsBeforeTheLimitAlsoWhileItIsPatient) {
  StepWatch watch(120 * kOneSecond);
  EXPECT_EQ(watch.LateNs(1), 90 * kOneSecond);
  Observe(watch, 100, 1, kOneMs);
  EXPECT_EQ(watch.LateNs(1), 1500 * kOneMs);
  watch.NoteGivenUp();
  EXPECT_EQ(watch.LimitNs(1), 120 * kOneSecond);
  EXPECT_EQ(watch.LateNs(1), 1500 * kOneMs);
}

TEST(StepWatchTest, NoLimitIsNoLimit) {
  StepWatch watch(0);
  Observe(watch, 100, 1, kOneMs);
  EXPECT_EQ(watch.LateNs(1), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(watch.LimitNs(1), std::numeric_limits<int64_t>::max());
}

TEST(StepWatchTest, AStepThatWasGivenUpMakesItPatientForAWhile) {
  StepWatch watch(120 * kOneSecond);
  Observe(watch, 100, 1, kOneMs);
  watch.NoteGivenUp();
  EXPECT_EQ(watch.LimitNs(1), 120 * kOneSecond);
  Observe(watch, 255, 1, kOneMs);
  EXPECT_EQ(watch.LimitNs(1), 120 * kOneSecond);
  Observe(watch, 1, 1, kOneMs);
  EXPECT_EQ(watch.LimitNs(1), 2 * kOneSecond);
}

TEST(StepWatchTest, ForgetsHowItOnceWas) {
  StepWatch watch(3600 * kOneSecond);
  Observe(watch, 2000, 1, 10 * kOneSecond);
  Observe(watch, 50'000, 1, kOneMs);
  EXPECT_EQ(watch.LimitNs(1), 2 * kOneSecond);
}

}  // namespace
}  // namespace pagoda::parallel
