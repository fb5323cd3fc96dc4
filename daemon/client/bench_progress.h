#pragma once

#include <cstdint>
#include <thread>

#include "absl/synchronization/notification.h"
#include "daemon/client/bench_load.h"

namespace pagoda::daemon {

// While it lives, one line of standard error says every half second how far a load is.
class ProgressLine {
 public:
  // `progress` outlives it. Not shown: it does nothing.
  ProgressLine(const BenchProgress* progress, int64_t num_requests, bool is_shown);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

 private:
  absl::Notification is_over_;
  std::thread thread_;
};

}  // namespace pagoda::daemon
