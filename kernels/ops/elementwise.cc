#include "kernels/ops/elementwise.h"

#include "kernels/base/status_macros.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels {
absl::Status Validate(const ResolveTokensParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("ResolveTokens.rows", params.rows, 0));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("ResolveTokens.num_slots", params.num_slots, 0));
  if (params.rows == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequirePointer("ResolveTokens.host_tokens", params.host_tokens));
  PAGODA_RETURN_IF_ERROR(RequirePointer("ResolveTokens.source_slots", params.source_slots));
  PAGODA_RETURN_IF_ERROR(RequirePointer("ResolveTokens.tokens", params.tokens));
  if (params.num_slots == 0) return absl::OkStatus();
  return RequirePointer("ResolveTokens.last_tokens", params.last_tokens);
}

absl::Status Validate(const ScatterParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("Scatter.count", params.count, 0));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("Scatter.size", params.size, 0));
  if (params.count == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequirePointer("Scatter.pairs", params.pairs));
  return RequirePointer("Scatter.to", params.to);
}

absl::Status Validate(const EmbeddingParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("Embedding.rows", params.rows, 0));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("Embedding.table.n", params.table.n, 1));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("Embedding.table.k", params.table.k, 1));
  PAGODA_RETURN_IF_ERROR(RequireFinite("Embedding.scale", params.scale));
  PAGODA_RETURN_IF_ERROR(RequireActivation("Embedding.y_dtype", params.y_dtype));
  if (params.rows == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequirePointer("Embedding.tokens", params.tokens));
  PAGODA_RETURN_IF_ERROR(RequirePointer("Embedding.table.data", params.table.data));
  return RequirePointer("Embedding.y", params.y);
}

absl::Status Validate(const GatherRowsParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("GatherRows.rows", params.rows, 0));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("GatherRows.width", params.width, 1));
  PAGODA_RETURN_IF_ERROR(RequireActivation("GatherRows.dtype", params.dtype));
  if (params.rows == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequirePointer("GatherRows.x", params.x));
  PAGODA_RETURN_IF_ERROR(RequirePointer("GatherRows.indices", params.indices));
  return RequirePointer("GatherRows.y", params.y);
}

absl::Status Validate(const RmsNormParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("RmsNorm.rows", params.rows, 0));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("RmsNorm.width", params.width, 1));
  PAGODA_RETURN_IF_ERROR(RequireFinite("RmsNorm.epsilon", params.epsilon));
  PAGODA_RETURN_IF_ERROR(RequireFinite("RmsNorm.weight_offset", params.weight_offset));
  PAGODA_RETURN_IF_ERROR(RequireActivation("RmsNorm.dtype", params.dtype));
  if (params.rows == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("RmsNorm.x_stride", params.x_stride, params.width));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("RmsNorm.y_stride", params.y_stride, params.width));
  PAGODA_RETURN_IF_ERROR(RequirePointer("RmsNorm.x", params.x));
  PAGODA_RETURN_IF_ERROR(RequirePointer("RmsNorm.weight", params.weight));
  return RequirePointer("RmsNorm.y", params.y);
}

absl::Status Validate(const SiluMulParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("SiluMul.rows", params.rows, 0));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("SiluMul.width", params.width, 1));
  PAGODA_RETURN_IF_ERROR(RequireActivation("SiluMul.dtype", params.dtype));
  if (params.rows == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequirePointer("SiluMul.gate_up", params.gate_up));
  return RequirePointer("SiluMul.y", params.y);
}

}  // namespace pagoda::kernels
