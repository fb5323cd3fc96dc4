#pragma once

#include "daemon/exit_code.h"
#include "daemon/server/operations.h"
#include "pagoda/internal/v1/config.pb.h"

namespace pagoda::daemon {

// The composition root of `pagoda serve`: checks the model, binds the addresses, starts the worker,
// loads, serves until SIGTERM or SIGINT has drained it or a worker is lost, and stops in reverse.
// Returns an ExitCode, having said in one line what to do about anything but kExitOk. Called once,
// from main, before any other thread exists.
int RunServe(const internal::v1::ServerConfig& config, ServeSources sources);

}  // namespace pagoda::daemon
