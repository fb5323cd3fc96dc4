#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "kernels/base/mutex.h"

namespace pagoda {

// Keeps lines of one kind to so many a second, after a burst, and counts those left out, so that
// the next one can tell. Thread-safe.
class LogLimit {
 public:
  struct Rate {
    double per_second = 0;
    double burst = 0;
  };
  explicit LogLimit(const Rate& rate) : rate_(rate), tokens_(rate.burst) {}

  // Whether a line may be written now; then *num_left_out is how many were not since the last one
  // that was.
  bool Take(int64_t now_ns, uint64_t* num_left_out) {
    MutexLock lock(&mutex_);
    const double seconds = static_cast<double>(std::max<int64_t>(now_ns - last_ns_, 0)) * 1e-9;
    if (last_ns_ != 0) tokens_ = std::min(rate_.burst, tokens_ + seconds * rate_.per_second);
    last_ns_ = now_ns;
    if (tokens_ < 1) {
      ++num_left_out_;
      return false;
    }
    tokens_ -= 1;
    *num_left_out = num_left_out_;
    num_left_out_ = 0;
    return true;
  }

 private:
  const Rate rate_;
  Mutex mutex_;
  double tokens_ ABSL_GUARDED_BY(mutex_);
  int64_t last_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t num_left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace pagoda
