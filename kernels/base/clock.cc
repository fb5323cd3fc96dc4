#include "kernels/base/clock.h"

#include <ctime>

namespace pagoda {
namespace {

class MonotonicClock final : public Clock {
 public:
  int64_t NowNs() const override {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }
};

}  // namespace

const Clock& Clock::Monotonic() {
  static const MonotonicClock clock;
  return clock;
}

}  // namespace pagoda
