#pragma once

#include <algorithm>
#include <cstdint>

namespace pagoda::parallel {

// Decides when busy-waiting pays. On a core of its own a spin meets the answer and saves a wake-up;
// on a machine with more work than cores it keeps the very process from running that it waits for.
// So a spin that fails is followed by waits without one: 1, 2, 4, ... up to kMaxSkipped; one that
// succeeds allows the next. Thread-compatible.
class SpinGovernor {
 public:
  // Longer than a wake-up costs, far shorter than a step of a model.
  static constexpr int64_t kSpinNs = 50'000;

  // Whether to spin in this wait; then Report must follow.
  bool ShouldSpin() {
    if (num_to_skip_ == 0) return true;
    --num_to_skip_;
    return false;
  }
  void Report(bool succeeded) {
    penalty_ = succeeded ? 0 : std::clamp(2 * penalty_, 1, kMaxSkipped);
    num_to_skip_ = penalty_;
  }

 private:
  // A failed spin then costs less than 0.2 us a wait.
  static constexpr int kMaxSkipped = 256;

  int penalty_ = 0;
  int num_to_skip_ = 0;
};

}  // namespace pagoda::parallel
