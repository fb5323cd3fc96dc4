#pragma once

#include <cstdint>
#include <string>

#include "absl/types/optional.h"
#include "kernels/base/clock.h"
#include "pagoda/internal/v1/worker.pb.h"

namespace pagoda::daemon {

// Shows how far loading is: one line that moves on a terminal, a plain line now and then elsewhere.
// Thread-compatible.
class LoadProgressPrinter {
 public:
  LoadProgressPrinter(bool is_terminal, const Clock* clock);
  // Leaves the terminal's line to others.
  ~LoadProgressPrinter();
  // What it says now; absent when it is too soon to say something again.
  absl::optional<std::string> Show(const internal::v1::LoadProgress& progress);

 private:
  const bool is_terminal_;
  const Clock* const clock_;
  const int64_t start_ns_;
  int64_t next_ns_ = 0;
  bool line_is_open_ = false;
};

}  // namespace pagoda::daemon
