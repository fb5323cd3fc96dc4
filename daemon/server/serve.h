#pragma once

#include "daemon/exit_code.h"
#include "pagoda/internal/v1/config.pb.h"

namespace pagoda::daemon {

// The composition root of `pagoda serve`: checks the model, binds the addresses, starts the worker,
// loads, serves until SIGTERM or SIGINT has drained it or a worker is lost, and stops in reverse.
// Returns an ExitCode, having said in one line what to do about anything but kExitOk. Called once,
// from main, before any other thread exists. `http_is_optional`: nobody asked for the HTTP address,
// so where it is taken a warning says so and all else is served.
int RunServe(const internal::v1::ServerConfig& config, bool http_is_optional);

}  // namespace pagoda::daemon
