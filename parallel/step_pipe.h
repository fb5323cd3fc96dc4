#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "pagoda/internal/v1/worker.pb.h"

namespace pagoda::parallel {

// How workers were lost.
struct WorkerFailure {
  enum class Cause : uint8_t {
    kKilled,    // SIGKILL: by the kernel when memory runs out, or by a person
    kStopped,   // its step does not end because somebody has stopped the process
    kCrashed,   // any other end
    kError,     // it said what failed
    kStuck,     // its step does not end
    kProtocol,  // it sent what nobody had asked for
    kStart,     // it did not become ready
  };
  Cause cause = Cause::kCrashed;
  int rank = 0;
  // What it was doing: "open", "load", "step" or "wait".
  absl::string_view operation;
  uint64_t step_id = 0;  // the oldest step that it had not answered; 0: none
  absl::Status status;   // in words

  // Whether what the step computed may have been the reason.
  bool MayBlameRows() const {
    return cause == Cause::kCrashed || cause == Cause::kError || cause == Cause::kStuck ||
           cause == Cause::kProtocol;
  }
};
inline constexpr size_t kNumWorkerFailureCauses = 7;
// "killed", "stopped", "crashed", "error", "stuck", "protocol", "start".
absl::string_view WorkerFailureCauseName(WorkerFailure::Cause cause);

// The engine's end of the workers: plans go in, results come out in the same order. Engine thread
// only.
class StepPipe {
 public:
  virtual ~StepPipe() = default;

  // Sends a plan to every rank; does not wait for it to run. UNAVAILABLE when a worker is gone.
  // REQUIRES: is_ready().
  virtual absl::Status Submit(const internal::v1::StepPlan& plan) = 0;
  // Takes the next result if there is one: true if it did. UNAVAILABLE when a worker is gone;
  // DEADLINE_EXCEEDED when the oldest step in flight takes longer than a step may.
  virtual absl::StatusOr<bool> Poll(internal::v1::StepResult* result) = 0;
  // Returns when Poll may have news, when wake_fd is readable, or at deadline_ns of the monotonic
  // clock (INT64_MAX: none). May return early. Spins for a short while before it sleeps when a step
  // is in flight.
  virtual void Wait(int wake_fd, int64_t deadline_ns) = 0;

  // Why Submit or Poll failed last. REQUIRES: one did.
  virtual WorkerFailure failure() const = 0;
  // Ends the workers and, from `not_before_ns` on, starts new ones that know nothing: steps count
  // from 1 again. Does not wait; until is_ready(), Poll gives no result but may fail.
  virtual void Restart(int64_t not_before_ns) = 0;
  // Steps may be submitted.
  virtual bool is_ready() const = 0;
  // From when on the workers look stuck unless news comes: the oldest step in flight is late then,
  // though it is not given up yet, or a worker was seen stopped at the last Poll. INT64_MAX: never.
  virtual int64_t late_at_ns() const = 0;
};

}  // namespace pagoda::parallel
