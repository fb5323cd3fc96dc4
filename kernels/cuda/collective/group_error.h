#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/base/dtype.h"
#include "kernels/cuda/collective/peer_view.h"
#include "kernels/device_group.h"

namespace pagoda::kernels::cuda {

// The failures of groups of devices, one constructor each.

absl::Status AbortedError();

struct FaultFacts {
  int rank = 0;
  int peer = 0;
  uint32_t epoch = 0;
  int64_t timeout_ns = 0;
};
absl::Status FaultError(CollectiveFault fault, const FaultFacts& facts);

// NCCL takes one rank a device.
absl::Status SharedDeviceError(int rank, int other, absl::string_view device);
// Devices that do not reach each other's memory.
absl::Status NoAccessError(int rank, int peer);
// Devices that say that they reach each other's memory, and do not.
absl::Status NoReachError(int rank, int64_t index, float value, float expected);
absl::Status RowTooLongError(int64_t width, DType dtype, int64_t max_bytes);
absl::Status GatherTooLongError(absl::string_view field, int64_t num_bytes);

// INVALID_ARGUMENT naming the field, or OK.
absl::Status CheckGroupOptions(const DeviceGroupOptions& options, int max_ranks);

}  // namespace pagoda::kernels::cuda
