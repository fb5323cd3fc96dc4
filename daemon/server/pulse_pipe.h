#pragma once

#include <atomic>
#include <cstdint>

#include "parallel/step_pipe.h"

namespace pagoda::daemon {

// The engine's pipe to its workers, with a count of the engine's rounds: it polls in each, steps or
// none, also while workers are replaced. Engine thread only, but for num_rounds.
class PulsePipe final : public parallel::StepPipe {
 public:
  // `pipe` outlives it.
  explicit PulsePipe(parallel::StepPipe* pipe) : pipe_(pipe) {}

  absl::Status Submit(const internal::v1::StepPlan& plan) override { return pipe_->Submit(plan); }
  absl::StatusOr<bool> Poll(internal::v1::StepResult* result) override {
    num_rounds_.store(num_rounds_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return pipe_->Poll(result);
  }
  void Wait(int wake_fd, int64_t deadline_ns) override { pipe_->Wait(wake_fd, deadline_ns); }
  parallel::WorkerFailure failure() const override { return pipe_->failure(); }
  void Restart(int64_t not_before_ns) override { pipe_->Restart(not_before_ns); }
  bool is_ready() const override { return pipe_->is_ready(); }
  int64_t late_at_ns() const override { return pipe_->late_at_ns(); }

  // Any thread.
  uint64_t num_rounds() const { return num_rounds_.load(std::memory_order_relaxed); }

 private:
  parallel::StepPipe* const pipe_;
  std::atomic<uint64_t> num_rounds_{0};
};

}  // namespace pagoda::daemon
