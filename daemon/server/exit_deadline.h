#pragma once

#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace pagoda::daemon {

// Ends the process when its scope is not left in time: a stop that hangs would otherwise wait for
// somebody to kill it.
class ExitDeadline {
 public:
  ExitDeadline(absl::Duration limit, int exit_code);
  ~ExitDeadline();

 private:
  absl::Notification left_;
  std::thread thread_;
};

}  // namespace pagoda::daemon
