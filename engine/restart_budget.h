#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

namespace pagoda::engine {

// How often workers may be replaced: at most `max_restarts` times within any `window_ns`. Knows no
// clock. Thread-compatible.
class RestartBudget {
 public:
  RestartBudget(uint32_t max_restarts, int64_t window_ns)
      : max_restarts_(max_restarts), window_ns_(window_ns) {}

  // One more restart: false when it is one too many.
  bool Take(int64_t now_ns) {
    while (!times_ns_.empty() && times_ns_.front() <= now_ns - window_ns_) times_ns_.pop_front();
    if (times_ns_.size() >= max_restarts_) return false;
    times_ns_.push_back(now_ns);
    return true;
  }
  // The last `num_restarts` had a reason that is gone.
  void Forgive(size_t num_restarts) {
    for (size_t n = std::min(num_restarts, times_ns_.size()); n > 0; --n) times_ns_.pop_back();
  }
  size_t num_taken() const { return times_ns_.size(); }
  uint32_t max_restarts() const { return max_restarts_; }
  int64_t window_ns() const { return window_ns_; }

 private:
  const uint32_t max_restarts_;
  const int64_t window_ns_;
  std::deque<int64_t> times_ns_;  // oldest first, within the window
};

}  // namespace pagoda::engine
