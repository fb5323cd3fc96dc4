#include "engine/queue_rate.h"

namespace pagoda::engine {
namespace {

// Long enough to average over steps, short enough to follow a change of load.
constexpr int64_t kWindowNs = 1'000'000'000;
// Of the newest window.
constexpr double kNewShare = 0.5;

}  // namespace

void QueueRate::Begin(int64_t now_ns) {
  is_running_ = true;
  window_start_ns_ = now_ns;
  num_left_ = 0;
}

void QueueRate::NoteLeft(int64_t num_sequences, int64_t now_ns) {
  if (!is_running_) return;
  num_left_ += num_sequences;
  const int64_t elapsed_ns = now_ns - window_start_ns_;
  if (elapsed_ns < kWindowNs) return;
  const double rate = static_cast<double>(num_left_) / static_cast<double>(elapsed_ns);
  per_ns_ = per_ns_ == 0.0 ? rate : (1.0 - kNewShare) * per_ns_ + kNewShare * rate;
  window_start_ns_ = now_ns;
  num_left_ = 0;
}

std::optional<int64_t> QueueRate::TimeOf(double num_sequences) const {
  if (per_ns_ <= 0.0) return std::nullopt;
  return static_cast<int64_t>(num_sequences / per_ns_);
}

}  // namespace pagoda::engine
