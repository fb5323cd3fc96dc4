#pragma once

#include <atomic>
#include <cstddef>

namespace pagoda::daemon {

// Bytes that many may hold together. Thread-safe.
class ByteBudget {
 public:
  explicit ByteBudget(size_t most_bytes) : most_bytes_(most_bytes) {}

  // Whether so many more may be held; if so they are, until Give.
  bool Take(size_t bytes) {
    size_t held = held_bytes_.load(std::memory_order_relaxed);
    do {
      if (bytes > most_bytes_ - held) return false;
    } while (!held_bytes_.compare_exchange_weak(held, held + bytes, std::memory_order_relaxed));
    return true;
  }
  void Give(size_t bytes) { held_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  const size_t most_bytes_;
  std::atomic<size_t> held_bytes_{0};
};

}  // namespace pagoda::daemon
