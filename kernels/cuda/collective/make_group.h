#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/device_context.h"
#include "kernels/device_group.h"

namespace pagoda::kernels::cuda {

// A group over options.transport, or over what the ranks' devices allow. Every rank calls it, on
// the thread of its device, and all come to the same transport. INVALID_ARGUMENT for an nccl group
// of ranks that share a device, FAILED_PRECONDITION for an ipc group of devices without peer
// access. The context must outlive the group.
absl::StatusOr<std::unique_ptr<DeviceGroup>> MakeGroup(const DeviceContext& context,
                                                       const DeviceGroupOptions& options);

}  // namespace pagoda::kernels::cuda
