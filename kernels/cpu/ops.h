#pragma once

#include "absl/status/status.h"
#include "kernels/cpu/context.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/copy_blocks.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/sample.h"

// The ops of the cpu backend, one file each; kernels/backend.h says what they do. All refuse what
// they cannot do.

namespace pagoda::kernels::cpu {

absl::Status ResolveTokens(const ResolveTokensParams& params);
absl::Status Scatter(const ScatterParams& params);
absl::Status Embedding(Context& context, const EmbeddingParams& params);
absl::Status AddEmbedding(Context& context, const EmbeddingParams& params);
absl::Status GatherRows(Context& context, const GatherRowsParams& params);
absl::Status RmsNorm(Context& context, const RmsNormParams& params);
absl::Status LayerNorm(Context& context, const LayerNormParams& params);
absl::Status HeadNorm(Context& context, const HeadNormParams& params);
absl::Status Activate(Context& context, const ActivateParams& params);
absl::Status AddScaled(Context& context, const AddScaledParams& params);
absl::Status AdjustLogits(Context& context, const AdjustLogitsParams& params);
absl::Status SiluMul(Context& context, const SiluMulParams& params);
absl::Status Linear(Context& context, const LinearParams& params);
absl::Status RouteExperts(Context& context, const RouteExpertsParams& params);
absl::Status GroupedLinear(Context& context, const GroupedLinearParams& params);
absl::Status CombineExperts(Context& context, const CombineExpertsParams& params);
absl::Status CopyBlocks(Context& context, const CopyBlocksParams& params);
absl::Status RopeKvWrite(Context& context, const RopeKvWriteParams& params);
absl::Status PagedAttention(Context& context, const PagedAttentionParams& params);
absl::Status Sample(Context& context, const SampleParams& params);

// Outputs of a weight whose pairs of inputs lie side by side: what one SIMD register of sums holds.
inline constexpr int64_t kPanelRows = 16;
// Elements of a weight in its format, padding included.
int64_t WeightElements(const LinearWeight& weight);
absl::Status PackLinear(Context& context, const PackLinearParams& params);
absl::Status FillNormal(Context& context, const FillNormalParams& params);

}  // namespace pagoda::kernels::cpu
