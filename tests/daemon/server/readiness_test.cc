#include "daemon/server/readiness.h"

#include <gtest/gtest.h>

namespace pagoda::daemon {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(ReadinessTest, WorkersThatAreReplacedAtOnceAreNotNoticed) {
  Readiness readiness;
  EXPECT_TRUE(readiness.Update(Ability::kComputes, 10 * kSecond));
  EXPECT_TRUE(readiness.Update(Ability::kNoWorkers, 10 * kSecond + kSecond / 2));
  EXPECT_TRUE(readiness.Update(Ability::kComputes, 11 * kSecond));
  EXPECT_TRUE(readiness.Update(Ability::kNoWorkers, 12 * kSecond - 1));
}

TEST(ReadinessTest, ASecondWithoutWorkersIsAndTheEndOfItToo) {
  Readiness readiness;
  EXPECT_TRUE(readiness.Update(Ability::kComputes, 10 * kSecond));
  EXPECT_FALSE(readiness.Update(Ability::kNoWorkers, 11 * kSecond));
  EXPECT_FALSE(readiness.Update(Ability::kNoWorkers, 100 * kSecond));
  EXPECT_TRUE(readiness.Update(Ability::kComputes, 101 * kSecond));
  EXPECT_TRUE(readiness.Update(Ability::kNoWorkers, 101 * kSecond + 1));
}

// What looks stuck is not ready at once, nor while it is replaced then.
TEST(ReadinessTest, AStepThatIsLateIsNotWaitedFor) {
  Readiness readiness;
  EXPECT_TRUE(readiness.Update(Ability::kComputes, 10 * kSecond));
  EXPECT_FALSE(readiness.Update(Ability::kIsLate, 10 * kSecond + 1));
  EXPECT_FALSE(readiness.Update(Ability::kNoWorkers, 10 * kSecond + 2));
  EXPECT_TRUE(readiness.Update(Ability::kComputes, 10 * kSecond + 3));
}

}  // namespace
}  // namespace pagoda::daemon
