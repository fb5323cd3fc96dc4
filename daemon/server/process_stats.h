#pragma once

#include <cstdint>

namespace pagoda::daemon {

// What /proc says of this process; zeros where it says nothing.
struct ProcessStats {
  double cpu_seconds = 0.0;
  double start_time_seconds = 0.0;  // since the epoch
  uint64_t resident_bytes = 0;
  uint64_t virtual_bytes = 0;
  uint64_t num_open_fds = 0;
  uint64_t max_fds = 0;
  uint64_t num_threads = 0;
};

ProcessStats ReadProcessStats();

}  // namespace pagoda::daemon
