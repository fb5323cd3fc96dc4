#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pagoda/internal/v1/worker.pb.h"

namespace pagoda::parallel {

// The engine's end of the workers: plans go in, results come out in the same order. Engine thread
// only.
class StepPipe {
 public:
  virtual ~StepPipe() = default;

  // Sends a plan to every rank; does not wait for it to run. UNAVAILABLE when a worker is gone.
  virtual absl::Status Submit(const internal::v1::StepPlan& plan) = 0;
  // Takes the next result if there is one: true if it did. UNAVAILABLE when a worker is gone;
  // DEADLINE_EXCEEDED when the oldest step in flight has taken longer than the step timeout.
  virtual absl::StatusOr<bool> Poll(internal::v1::StepResult* result) = 0;
  // Returns when Poll may have news, when wake_fd is readable, or at deadline_ns of the monotonic
  // clock (INT64_MAX: none). May return early. Spins for a short while before it sleeps when a step
  // is in flight.
  virtual void Wait(int wake_fd, int64_t deadline_ns) = 0;
};

}  // namespace pagoda::parallel
