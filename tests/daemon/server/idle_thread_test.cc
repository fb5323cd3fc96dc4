#include "daemon/server/idle_thread.h"

#include <sched.h>

#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

TEST(IdleThreadTest, RunsOneTaskAfterAnotherBehindEverybodyElse) {
  IdleThread idle;
  std::thread::id first, second;
  int policy = SCHED_OTHER;
  idle.Run([&] {
    first = std::this_thread::get_id();
    policy = sched_getscheduler(0);
  });
  idle.Run([&] { second = std::this_thread::get_id(); });
  EXPECT_EQ(first, second);
  EXPECT_NE(first, std::this_thread::get_id());
  EXPECT_EQ(policy, SCHED_IDLE);
  EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
}

}  // namespace
}  // namespace pagoda::daemon
