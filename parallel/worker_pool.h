#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/clock.h"
#include "pagoda/internal/v1/config.pb.h"
#include "pagoda/internal/v1/worker.pb.h"
#include "parallel/step_pipe.h"

namespace pagoda::parallel {

struct WorkerPoolOptions {
  internal::v1::ServerConfig config;
  // Command of a worker process; the channel's descriptor number is appended as --channel-fd=N, and
  // that of the memory that several ranks share as --group-fd=N.
  std::vector<std::string> worker_command;  // usually {"/proc/self/exe", "worker"}
  int num_ranks = 1;
  const Clock* clock = &Clock::Monotonic();
};

// The worker processes of one replica, and the pipe to them. Engine thread only, but for Start and
// Load, which run before it. A worker dies with the thread that has started it (Start, or the Poll
// after a Restart), so those threads must live as long as the pool is used.
//
// After a failure every call returns it, until Restart. Start and Load keep the code that a worker
// gave (such as INVALID_ARGUMENT for a broken model); later any end of a worker is UNAVAILABLE,
// saying how it ended.
class WorkerPool : public StepPipe {
 public:
  using ProgressFn = std::function<void(const internal::v1::LoadProgress&)>;

  // Starts every worker process and waits until each has opened its device. UNAVAILABLE, or the
  // worker's own status.
  static absl::StatusOr<std::unique_ptr<WorkerPool>> Start(WorkerPoolOptions options);

  // What rank 0 runs on.
  virtual const internal::v1::WorkerHello& hello() const = 0;
  // Loads the model on every rank. Progress and the answer add up bytes over the ranks; blocks are
  // the fewest of any.
  virtual absl::StatusOr<internal::v1::ModelReady> Load(const internal::v1::LoadModel& load,
                                                        const ProgressFn& progress) = 0;
  // What each rank runs on and has loaded, in order. REQUIRES: Load succeeded, and nothing has
  // failed since.
  struct Device {
    internal::v1::WorkerHello hello;
    internal::v1::ModelReady ready;
  };
  virtual std::vector<Device> devices() const = 0;
  // Asks the workers to end and reaps them; kills those that do not end in time. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace pagoda::parallel
