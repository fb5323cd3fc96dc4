#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/device_context.h"
#include "kernels/device_group.h"

namespace pagoda::kernels::cuda {

// A group over NCCL: one rank a device. Its communicator blocks no thread, so that Abort and the
// timeout end whatever the ranks do; an op that waits for a lost rank ends by Abort alone. NVLink
// multicast stays off. No AllReduceNorm: the sum is NCCL's.
//
// Every rank calls it, on the thread of its device. The context must outlive the group, and graphs
// with its ops must not: NCCL waits for them to be destroyed.
// FAILED_PRECONDITION where there is no NCCL, or this build was made without its header.
absl::StatusOr<std::unique_ptr<DeviceGroup>> MakeNcclGroup(const DeviceContext& context,
                                                           const DeviceGroupOptions& options);

// Of the header; empty where there was none.
std::string NcclBuildVersion();

}  // namespace pagoda::kernels::cuda
