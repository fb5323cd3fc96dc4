#pragma once

#include "absl/status/status.h"
#include "parallel/step_executor.h"

namespace pagoda::parallel {

// Body of a worker process: reads requests from the inherited channel, runs them, answers; returns when told to shut
// down (OK), when the daemon is gone (CANCELLED), or when the executor failed (its status, sent as WorkerError first).
// Dies with its parent (PR_SET_PDEATHSIG).
absl::Status RunWorkerLoop(int channel_fd, const StepExecutorFactory& make_executor);

}  // namespace pagoda::parallel
