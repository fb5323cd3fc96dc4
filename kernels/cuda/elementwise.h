#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/device_context.h"
#include "kernels/ops/elementwise.h"

namespace pagoda::kernels::cuda {

// Launchers of the row-wise ops. REQUIRES: the parameters passed Validate.
absl::Status ResolveTokens(const DeviceContext& context, const ResolveTokensParams& params);
absl::Status Scatter(const DeviceContext& context, const ScatterParams& params);
absl::Status Embedding(const DeviceContext& context, const EmbeddingParams& params);
absl::Status GatherRows(const DeviceContext& context, const GatherRowsParams& params);
absl::Status RmsNorm(const DeviceContext& context, const RmsNormParams& params);
absl::Status SiluMul(const DeviceContext& context, const SiluMulParams& params);

}  // namespace pagoda::kernels::cuda
