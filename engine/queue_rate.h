#pragma once

#include <cstdint>
#include <optional>

namespace pagoda::engine {

// How many sequences a second leave the waiting queue while somebody waits: what a wait is
// estimated from. Idle times do not count. Thread-compatible.
class QueueRate {
 public:
  // The first comes to an empty queue.
  void Begin(int64_t now_ns);
  // So many have left. REQUIRES: Begin was called since the last End.
  void NoteLeft(int64_t num_sequences, int64_t now_ns);
  // The queue is empty.
  void End() { is_running_ = false; }

  // How long so many take to leave; absent until it is known.
  std::optional<int64_t> TimeOf(double num_sequences) const;

 private:
  double per_ns_ = 0.0;  // 0: not known
  bool is_running_ = false;
  int64_t window_start_ns_ = 0;
  int64_t num_left_ = 0;  // in the window
};

}  // namespace pagoda::engine
