#include "daemon/server/exit_deadline.h"

#include <unistd.h>

#include "absl/time/clock.h"
#include "kernels/base/log.h"

namespace pagoda::daemon {

ExitDeadline::ExitDeadline(absl::Duration limit, int exit_code)
    : thread_([this, limit, exit_code] {
        if (left_.WaitForNotificationWithTimeout(limit)) return;
        LogError("stopping took longer than %s; leaving", absl::FormatDuration(limit));
        _exit(exit_code);
      }) {}

ExitDeadline::~ExitDeadline() {
  left_.Notify();
  thread_.join();
}

}  // namespace pagoda::daemon
