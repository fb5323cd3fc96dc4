#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pagoda/internal/v1/config.pb.h"
#include "pagoda/internal/v1/worker.pb.h"

namespace pagoda::parallel {

// What a worker runs: a model on one device. Implemented by engine/model; joined to the worker loop
// by daemon. Thread-compatible: the worker's one thread.
class StepExecutor {
 public:
  using ProgressFn = std::function<void(const internal::v1::LoadProgress&)>;

  virtual ~StepExecutor() = default;

  // Opens the device.
  virtual absl::StatusOr<internal::v1::WorkerHello> Open(const internal::v1::OpenWorker& open) = 0;
  // Loads weights, allocates everything, warms up. REQUIRES: Open succeeded.
  virtual absl::StatusOr<internal::v1::ModelReady> Load(const internal::v1::LoadModel& load,
                                                        const ProgressFn& progress) = 0;
  // Starts a step; may return before it has run. An error is fatal for the worker: the daemon has
  // validated the plan, so it means a bug or a broken device. REQUIRES: Load succeeded; steps come
  // in order of step_id.
  virtual absl::Status Submit(const internal::v1::StepPlan& plan) = 0;
  // Takes the result of the oldest submitted step if it has ended; true if it did.
  virtual absl::StatusOr<bool> TakeResult(internal::v1::StepResult* result) = 0;
  // Does a little of what makes later steps faster (a few tenths of a second at most), when nobody
  // has wanted anything for a while: true if more of it is left. REQUIRES: Load succeeded; no step
  // in flight.
  virtual absl::StatusOr<bool> DoIdleWork() { return false; }
  // Forgets every slot. REQUIRES: no step in flight.
  virtual absl::Status Reset() = 0;
};

using StepExecutorFactory = std::function<absl::StatusOr<std::unique_ptr<StepExecutor>>(
    const internal::v1::OpenWorker& open)>;

}  // namespace pagoda::parallel
