#pragma once

#include "absl/status/status.h"

namespace pagoda {

// Why a device cannot be used. Travels with a status, from the backend that finds out to the
// process that exits with a code of its own for each.
enum class DeviceFault : int {
  kNone = 0,
  kNoModule = 1,  // pagoda_cuda.so missing, not loadable or of another version
  kNoDriver = 2,
  kOldDriver = 3,
  kNoDevice = 4,   // no GPU, or none of that number
  kOldDevice = 5,  // or any other that has no kernels
  kNoMemory = 6,
};

absl::Status WithDeviceFault(absl::Status status, DeviceFault fault);
// kNone unless the status was given one.
DeviceFault DeviceFaultOf(const absl::Status& status);

}  // namespace pagoda
