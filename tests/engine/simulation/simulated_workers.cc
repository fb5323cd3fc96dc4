#include "tests/engine/simulation/simulated_workers.h"

#include <algorithm>

namespace pagoda::engine::simulation {

using Cause = parallel::WorkerFailure::Cause;

SimulatedWorkers::SimulatedWorkers(const Options& options, SimulatedClock* clock)
    : options_(options), clock_(clock), random_(options.seed), fake_(options.fake) {}

void SimulatedWorkers::Lose(Cause cause) {
  if (!is_ready() || fake_.fault.has_value()) return;
  fake_.fault = absl::UnavailableError("lost");
  fake_.fault_cause = cause;
}

void SimulatedWorkers::Hang() {
  if (!is_ready() || ends_ns_.empty()) return;
  std::fill(ends_ns_.begin(), ends_ns_.end(), kNever);
  timeout_ns_ = std::min(timeout_ns_, clock_->NowNs() + options_.step_timeout_ns);
}

void SimulatedWorkers::SlowDown(int64_t factor, int64_t until_ns) {
  slow_factor_ = factor;
  slow_until_ns_ = until_ns;
}

absl::Status SimulatedWorkers::Submit(const internal::v1::StepPlan& plan) {
  const absl::Status status = fake_.Submit(plan);
  if (!status.ok()) return status;
  int64_t num_tokens = 0;
  for (const uint32_t n : plan.row_num_tokens()) num_tokens += n;
  int64_t step_ns = options_.step_ns + options_.token_ns * num_tokens;
  step_ns += std::uniform_int_distribution<int64_t>(0, step_ns / 4)(random_);
  if (clock_->NowNs() < slow_until_ns_) step_ns *= slow_factor_;
  const bool hangs = timeout_ns_ != kNever;
  free_ns_ = std::max(free_ns_, clock_->NowNs()) + step_ns;
  ends_ns_.push_back(hangs ? kNever : free_ns_);
  busy_ns_ += step_ns;
  return status;
}

absl::StatusOr<bool> SimulatedWorkers::Poll(internal::v1::StepResult* result) {
  const int64_t now_ns = clock_->NowNs();
  if (now_ns >= timeout_ns_ && !fake_.fault.has_value()) {
    fake_.fault = absl::DeadlineExceededError("a step does not end");
    fake_.fault_cause = Cause::kStuck;
  }
  if (fake_.fault.has_value()) return fake_.Poll(result);
  if (now_ns < ready_ns_) return false;
  if (!fake_.is_ready()) {
    // The start has ended, well or badly.
    fake_.Wait(-1, 0);
    return fake_.Poll(result);
  }
  if (ends_ns_.empty() || ends_ns_.front() > now_ns) return false;
  fake_.Wait(-1, 0);
  const absl::StatusOr<bool> polled = fake_.Poll(result);
  if (!polled.ok() || !*polled) return polled;
  ends_ns_.pop_front();
  if (spoils_next_) {
    spoils_next_ = false;
    result->set_step_id(result->step_id() + 1);
  }
  return true;
}

int64_t SimulatedWorkers::NextNewsNs() const {
  const int64_t now_ns = clock_->NowNs();
  if (fake_.fault.has_value()) return now_ns;
  if (now_ns < ready_ns_) return ready_ns_;
  if (!fake_.is_ready()) return now_ns;
  return std::min(ends_ns_.empty() ? kNever : ends_ns_.front(), timeout_ns_);
}

void SimulatedWorkers::Wait(int, int64_t deadline_ns) {
  // Time never stands still, even if the engine waits for what is already there.
  pass_time(std::max(clock_->NowNs() + 1, std::min(deadline_ns, NextNewsNs())));
}

void SimulatedWorkers::Restart(int64_t not_before_ns) {
  fake_.Restart(not_before_ns);
  ends_ns_.clear();
  timeout_ns_ = kNever;
  spoils_next_ = false;
  free_ns_ = 0;
  ready_ns_ = std::max(clock_->NowNs(), not_before_ns) + options_.start_ns;
}

}  // namespace pagoda::engine::simulation
