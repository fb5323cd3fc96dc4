#pragma once

#include <cstdint>

namespace pagoda {

// A monotonic clock, passed to whatever measures or waits, so that tests own time. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since an arbitrary point; never decreases.
  virtual int64_t NowNs() const = 0;
  // CLOCK_MONOTONIC.
  static const Clock& Monotonic();
};

}  // namespace pagoda
