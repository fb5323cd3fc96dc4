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
  // Command of a worker process; the channel's descriptor number is appended as --channel-fd=N.
  std::vector<std::string> worker_command;  // usually {"/proc/self/exe", "worker"}
  const Clock* clock = &Clock::Monotonic();
};

// The worker processes of one replica, and the pipe to them. Engine thread only, but for Start and Load, which run
// before it.
class WorkerPool : public StepPipe {
 public:
  using ProgressFn = std::function<void(const internal::v1::LoadProgress&)>;

  // Starts every worker process and waits until each has opened its device.
  static absl::StatusOr<std::unique_ptr<WorkerPool>> Start(WorkerPoolOptions options);

  // What rank 0 runs on.
  virtual const internal::v1::WorkerHello& hello() const = 0;
  // Loads the model on every rank.
  virtual absl::StatusOr<internal::v1::ModelReady> Load(const internal::v1::LoadModel& load,
                                                        const ProgressFn& progress) = 0;
  // Asks the workers to end and reaps them; kills those that do not end in time. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace pagoda::parallel
