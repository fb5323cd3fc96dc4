#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/device_context.h"
#include "kernels/ops/moe.h"

namespace pagoda::kernels::cuda {

// Launchers of the ops of a mixture of experts. REQUIRES: the parameters passed Validate.
absl::Status RouteExperts(const DeviceContext& context, const RouteExpertsParams& params);
absl::Status GroupedLinear(const DeviceContext& context, const GroupedLinearParams& params);
absl::Status CombineExperts(const DeviceContext& context, const CombineExpertsParams& params);

}  // namespace pagoda::kernels::cuda
