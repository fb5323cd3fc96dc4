#include "kernels/ops/norm.h"

#include "kernels/base/status_macros.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels {

absl::Status Validate(const LayerNormParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("LayerNorm.rows", params.rows, 0));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("LayerNorm.width", params.width, 1));
  PAGODA_RETURN_IF_ERROR(RequireFinite("LayerNorm.epsilon", params.epsilon));
  PAGODA_RETURN_IF_ERROR(RequireActivation("LayerNorm.dtype", params.dtype));
  if (params.rows == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("LayerNorm.x_stride", params.x_stride, params.width));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("LayerNorm.y_stride", params.y_stride, params.width));
  PAGODA_RETURN_IF_ERROR(RequirePointer("LayerNorm.x", params.x));
  PAGODA_RETURN_IF_ERROR(RequirePointer("LayerNorm.weight", params.weight));
  return RequirePointer("LayerNorm.y", params.y);
}

absl::Status Validate(const HeadNormParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("HeadNorm.rows", params.rows, 0));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("HeadNorm.num_q_heads", params.num_q_heads, 1));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("HeadNorm.num_kv_heads", params.num_kv_heads, 1));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("HeadNorm.head_dim", params.head_dim, 1));
  PAGODA_RETURN_IF_ERROR(RequireFinite("HeadNorm.epsilon", params.epsilon));
  PAGODA_RETURN_IF_ERROR(RequireFinite("HeadNorm.weight_offset", params.weight_offset));
  PAGODA_RETURN_IF_ERROR(RequireActivation("HeadNorm.dtype", params.dtype));
  if (params.rows == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(
      RequireAtLeast("HeadNorm.qkv_stride",
                     params.qkv_stride,
                     (int64_t{params.num_q_heads} + params.num_kv_heads) * params.head_dim));
  PAGODA_RETURN_IF_ERROR(RequirePointer("HeadNorm.qkv", params.qkv));
  PAGODA_RETURN_IF_ERROR(RequirePointer("HeadNorm.q_weight", params.q_weight));
  return RequirePointer("HeadNorm.k_weight", params.k_weight);
}

}  // namespace pagoda::kernels
