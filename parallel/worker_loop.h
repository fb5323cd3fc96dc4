#pragma once

#include "absl/status/status.h"
#include "parallel/step_executor.h"

namespace pagoda::parallel {

// Body of a worker process: reads requests from the inherited channel, runs them, answers; returns
// when told to shut down (OK), when the daemon is gone (CANCELLED), or when the executor failed
// (its status, sent as WorkerError first). Takes the next plan while a step is in flight.
// (WorkerProcess makes the process die with its parent.)
absl::Status RunWorkerLoop(int channel_fd, const StepExecutorFactory& make_executor);

}  // namespace pagoda::parallel
