#include "daemon/server/grpc_idle_sleep.h"

#include <grpc/support/time.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

absl::Duration TimeToSleep(int milliseconds) {
  const absl::Time start = absl::Now();
  gpr_sleep_until(
      gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_millis(milliseconds, GPR_TIMESPAN)));
  return absl::Now() - start;
}

// Without our definition the first call after a quiet second waits for up to 100 ms.
TEST(GrpcIdleSleepTest, OursIsTheOneThatGrpcFinds) { EXPECT_TRUE(GrpcIdleSleepIsOff()); }

TEST(GrpcIdleSleepTest, IdleSleepReturnsAtOnce) {
  absl::Duration total;
  for (int i = 0; i < 20; ++i) total += TimeToSleep(100);
  EXPECT_LT(total, absl::Seconds(1));  // two, with libgpr's
}

TEST(GrpcIdleSleepTest, LongerSleepsAreMeant) {
  EXPECT_GE(TimeToSleep(150), absl::Milliseconds(149));
}

}  // namespace
}  // namespace pagoda::daemon
