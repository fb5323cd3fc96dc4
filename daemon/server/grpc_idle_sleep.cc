#include "daemon/server/grpc_idle_sleep.h"

#include <cerrno>
#include <dlfcn.h>
#include <time.h>

#include <grpc/support/time.h>

namespace {

// The idle sleep is 100 ms from now; anything longer is somebody who means it.
constexpr double kIdleSleepSeconds = 0.101;

}  // namespace

// The signature is libgpr's; being global in the executable, this one is found first.
extern "C" void gpr_sleep_until(gpr_timespec until) {
  const gpr_timespec now = gpr_now(until.clock_type);
  const gpr_timespec remaining = gpr_time_sub(until, now);
  if (gpr_timespec_to_micros(remaining) * 1e-6 <= kIdleSleepSeconds) return;
  timespec left = {.tv_sec = remaining.tv_sec, .tv_nsec = remaining.tv_nsec};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

namespace pagoda::daemon {

bool GrpcIdleSleepIsOff() {
  return dlsym(RTLD_DEFAULT, "gpr_sleep_until") == reinterpret_cast<void*>(&gpr_sleep_until);
}

}  // namespace pagoda::daemon
