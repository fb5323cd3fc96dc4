#pragma once

#include "absl/status/status.h"
#include "daemon/exit_code.h"

namespace pagoda::daemon {

// What the shell is told of a step of the start that failed: what a device said goes first.
// `is_load`: workers loaded, so that their end is none of the model's.
ExitCode ExitCodeOfStart(const absl::Status& status, bool is_load, ExitCode otherwise);

}  // namespace pagoda::daemon
