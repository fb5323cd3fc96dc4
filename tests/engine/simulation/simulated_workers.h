#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <random>

#include "tests/fakes/engine_harness.h"
#include "tests/fakes/fake_step_pipe.h"

namespace pagoda::engine::simulation {

// Time that passes only when somebody waits.
class SimulatedClock : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_; }
  void AdvanceTo(int64_t time_ns) { now_ns_ = std::max(now_ns_, time_ns); }

 private:
  int64_t now_ns_ = 1'000'000'000;
};

inline constexpr int64_t kMicrosecond = 1'000;
inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr int64_t kSecond = 1'000'000'000;
inline constexpr int64_t kNever = INT64_MAX;

// Workers in simulated time: a FakeStepPipe, which keeps the books and refuses plans that break a
// rule, behind steps that take their time, one after another, and behind everything that can go
// wrong with workers. The engine's Wait is where time passes.
class SimulatedWorkers : public parallel::StepPipe {
 public:
  struct Options {
    FakeStepPipe::Options fake;
    int64_t step_ns = 5 * kMillisecond;
    int64_t token_ns = 50 * kMicrosecond;
    int64_t start_ns = kSecond;  // until new workers are ready
    int64_t step_timeout_ns = 10 * kSecond;
    uint64_t seed = 0;
  };

  SimulatedWorkers(const Options& options, SimulatedClock* clock);

  // Time passes until `until_ns` at most: clients act in it. Returns when they have done something,
  // or at until_ns.
  std::function<void(int64_t until_ns)> pass_time;

  // ---- Faults. Each takes workers that run; those that start are left alone.
  // What the engine sees of them at its next look.
  void Lose(parallel::WorkerFailure::Cause cause);
  // The oldest step never ends.
  void Hang();
  // The next result answers another plan.
  void SpoilNextResult() { spoils_next_ = true; }
  // Steps take so many times as long until a time.
  void SlowDown(int64_t factor, int64_t until_ns);
  // Of the next starts, so many fail.
  void FailStarts(int num_starts) { fake_.num_failing_starts = num_starts; }

  FakeStepPipe& fake() { return fake_; }
  const FakeStepPipe& fake() const { return fake_; }
  size_t num_in_flight() const { return fake_.num_in_flight(); }
  uint64_t num_restarts() const { return fake_.num_restarts(); }
  uint64_t num_steps() const { return fake_.num_steps(); }
  int64_t busy_ns() const { return busy_ns_; }

  absl::Status Submit(const internal::v1::StepPlan& plan) override;
  absl::StatusOr<bool> Poll(internal::v1::StepResult* result) override;
  void Wait(int wake_fd, int64_t deadline_ns) override;
  parallel::WorkerFailure failure() const override { return fake_.failure(); }
  void Restart(int64_t not_before_ns) override;
  bool is_ready() const override { return clock_->NowNs() >= ready_ns_ && fake_.is_ready(); }
  int64_t late_at_ns() const override { return INT64_MAX; }

 private:
  // When Poll has news.
  int64_t NextNewsNs() const;

  const Options options_;
  SimulatedClock* const clock_;
  std::mt19937_64 random_;
  FakeStepPipe fake_;
  std::deque<int64_t> ends_ns_;  // of the steps in flight
  int64_t free_ns_ = 0;          // when the last of them ends
  int64_t ready_ns_ = 0;
  int64_t timeout_ns_ = kNever;  // of a step that hangs
  bool spoils_next_ = false;
  int64_t slow_factor_ = 1, slow_until_ns_ = 0;
  int64_t busy_ns_ = 0;
};

}  // namespace pagoda::engine::simulation
