#include "parallel/spin_governor.h"

#include "gtest/gtest.h"

namespace pagoda::parallel {
namespace {

// Waits without a spin until the next one that spins.
int SkippedWaits(SpinGovernor* governor) {
  int skipped = 0;
  while (!governor->ShouldSpin()) ++skipped;
  return skipped;
}

TEST(SpinGovernorTest, SpinsWhileItSucceeds) {
  SpinGovernor governor;
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(SkippedWaits(&governor), 0);
    governor.Report(true);
  }
}

TEST(SpinGovernorTest, FailuresMakeSpinsRareButNeverEndThem) {
  SpinGovernor governor;
  ASSERT_EQ(SkippedWaits(&governor), 0);
  for (const int expected : {1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256}) {
    governor.Report(false);
    ASSERT_EQ(SkippedWaits(&governor), expected);
  }
  governor.Report(true);
  ASSERT_EQ(SkippedWaits(&governor), 0);
  governor.Report(false);
  ASSERT_EQ(SkippedWaits(&governor), 1);
}

}  // namespace
}  // namespace pagoda::parallel
