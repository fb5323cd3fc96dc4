#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "parallel/step_executor.h"

namespace pagoda::parallel {

// What a FakeExecutor does beside answering each step.
struct FakeBehaviour {
  std::string name;      // see fake_executor.cc; empty: nothing special
  uint64_t at_step = 1;  // when, for those that happen in a step
  int channel_fd = -1;   // for those that write to the channel behind its back
};

// Answers a step with a fixed function of its plan: slot row_slots[i] gives token row_num_tokens[i]
// + step_id. Each result is ready at the second TakeResult, so that the loop has to poll ("late":
// at the hundred and first).
class FakeExecutor final : public StepExecutor {
 public:
  explicit FakeExecutor(FakeBehaviour behaviour) : behaviour_(std::move(behaviour)) {}

  absl::StatusOr<internal::v1::WorkerHello> Open(const internal::v1::OpenWorker& open) override;
  absl::StatusOr<internal::v1::ModelReady> Load(const internal::v1::LoadModel& load,
                                                const ProgressFn& progress) override;
  absl::Status Submit(const internal::v1::StepPlan& plan) override;
  absl::StatusOr<bool> TakeResult(internal::v1::StepResult* result) override;
  absl::StatusOr<bool> DoIdleWork() override { return ++*num_idle_calls_ < 3; }
  absl::Status Reset() override;

  // May be asked after the executor's end, by any thread.
  std::shared_ptr<const std::atomic<int>> num_idle_calls() const { return num_idle_calls_; }
  int max_steps_in_flight() const { return max_steps_in_flight_; }

 private:
  bool Is(absl::string_view name) const { return behaviour_.name == name; }
  absl::Status Misbehave();

  const FakeBehaviour behaviour_;
  std::deque<internal::v1::StepResult> results_;
  int num_polls_ = 0;
  uint32_t start_ = 0;
  uint32_t rank_ = 0;
  int max_steps_in_flight_ = 0;
  const std::shared_ptr<std::atomic<int>> num_idle_calls_ = std::make_shared<std::atomic<int>>(0);
};

// The descriptors open in this process, such as "0 1 2 3".
std::string OpenDescriptors();

}  // namespace pagoda::parallel
