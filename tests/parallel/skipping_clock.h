#pragma once

#include <atomic>
#include <cstdint>

#include "kernels/base/clock.h"

namespace pagoda::parallel {

// Real time, plus what a test adds. Thread-safe.
class SkippingClock final : public Clock {
 public:
  int64_t NowNs() const override { return Clock::Monotonic().NowNs() + skipped_ns_.load(); }
  void Skip(int64_t ns) { skipped_ns_ += ns; }

 private:
  std::atomic<int64_t> skipped_ns_{0};
};

}  // namespace pagoda::parallel
