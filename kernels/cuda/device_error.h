#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace pagoda::kernels::cuda {

// Reasons for which a device cannot be opened: each has its DeviceFault and says what to do. CUDA
// is not needed to make them.

absl::Status NoDriverError();
absl::Status DriverTooOldError(int driver_version, int needed_version);
absl::Status NoDeviceError(absl::string_view visible_devices);
absl::Status NoSuchDeviceError(int device_index, int num_devices);
absl::Status UnsupportedDeviceError(absl::string_view name, int major, int minor);
absl::Status DeviceOutOfMemoryError(absl::string_view purpose,
                                    uint64_t wanted_bytes,
                                    uint64_t free_bytes,
                                    uint64_t total_bytes);

}  // namespace pagoda::kernels::cuda
