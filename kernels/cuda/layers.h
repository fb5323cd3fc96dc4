#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/device_context.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/norm.h"

namespace pagoda::kernels::cuda {

// Launchers of the row-wise ops that not every architecture has. REQUIRES: the parameters passed
// Validate.
absl::Status AddEmbedding(const DeviceContext& context, const EmbeddingParams& params);
absl::Status LayerNorm(const DeviceContext& context, const LayerNormParams& params);
absl::Status HeadNorm(const DeviceContext& context, const HeadNormParams& params);
absl::Status Activate(const DeviceContext& context, const ActivateParams& params);
absl::Status AddScaled(const DeviceContext& context, const AddScaledParams& params);
absl::Status AdjustLogits(const DeviceContext& context, const AdjustLogitsParams& params);

}  // namespace pagoda::kernels::cuda
