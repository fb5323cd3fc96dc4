#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/device_context.h"
#include "kernels/ops/copy_blocks.h"

namespace pagoda::kernels::cuda {

// REQUIRES: the parameters passed Validate.
absl::Status CopyBlocks(const DeviceContext& context, const CopyBlocksParams& params);

}  // namespace pagoda::kernels::cuda
