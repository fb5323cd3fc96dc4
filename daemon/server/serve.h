#pragma once

#include "pagoda/internal/v1/config.pb.h"

namespace pagoda::daemon {

// What the process answers to its supervisor. 1 is left to the run-time library, 2 to the command
// line.
enum ExitCode : int {
  kExitOk = 0,
  kExitUsage = 2,
  kExitBadModel = 3,
  kExitNoDevice = 4,
  kExitWorkerLost = 5,
  kExitAddress = 6,
};

// The composition root of `pagoda serve`: checks the model, binds the addresses, starts the worker,
// loads, serves until SIGTERM or SIGINT has drained it or a worker is lost, and stops in reverse.
// Returns an ExitCode, having said in one line what to do about anything but kExitOk. Called once,
// from main, before any other thread exists.
int RunServe(const internal::v1::ServerConfig& config);

}  // namespace pagoda::daemon
