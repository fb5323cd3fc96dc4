#include "daemon/server/start_failure.h"

#include "absl/types/optional.h"
#include "kernels/base/device_fault.h"

namespace pagoda::daemon {
namespace {

// The worker died or hung while it loaded, or its device failed; anything else is about the model.
bool IsWorkersEnd(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsInternal(status);
}

absl::optional<ExitCode> ExitCodeOf(DeviceFault fault) {
  switch (fault) {
    case DeviceFault::kNone:
      break;
    case DeviceFault::kNoModule:
      return kExitNoModule;
    case DeviceFault::kNoDriver:
      return kExitNoDriver;
    case DeviceFault::kOldDriver:
      return kExitOldDriver;
    case DeviceFault::kNoDevice:
      return kExitNoDevice;
    case DeviceFault::kOldDevice:
      return kExitOldDevice;
    case DeviceFault::kNoMemory:
      return kExitNoMemory;
  }
  return absl::nullopt;
}

}  // namespace

ExitCode ExitCodeOfStart(const absl::Status& status, bool is_load, ExitCode otherwise) {
  if (const auto code = ExitCodeOf(DeviceFaultOf(status)); code.has_value()) return *code;
  return is_load && IsWorkersEnd(status) ? kExitWorkerLost : otherwise;
}

}  // namespace pagoda::daemon
