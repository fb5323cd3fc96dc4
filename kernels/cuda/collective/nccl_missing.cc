#include "absl/status/status.h"
#include "kernels/cuda/collective/nccl_group.h"

// In place of nccl_group.cc where nccl.h was not found.

namespace pagoda::kernels::cuda {

absl::StatusOr<std::unique_ptr<DeviceGroup>> MakeNcclGroup(const DeviceContext&,
                                                           const DeviceGroupOptions&) {
  return absl::FailedPreconditionError(
      "this build has no nccl groups: nccl.h was not found when it was configured");
}

std::string NcclBuildVersion() { return ""; }

}  // namespace pagoda::kernels::cuda
