#include "kernels/ops/norm.h"

#include "kernels/base/status_macros.h"
#include "kernels/cpu/ops.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels::cpu {

absl::Status LayerNorm(Context& context, const LayerNormParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  PAGODA_RETURN_IF_ERROR(RequireDType("LayerNorm.dtype", params.dtype, {DType::kFloat32}));
  context.ParallelFor(
      params.rows, params.rows * params.width / 6, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          context.kernels.layer_norm_row(static_cast<const float*>(params.x) + i * params.x_stride,
                                         params.weight,
                                         params.bias,
                                         params.epsilon,
                                         params.width,
                                         static_cast<float*>(params.y) + i * params.y_stride);
        }
      });
  return absl::OkStatus();
}

absl::Status HeadNorm(Context& context, const HeadNormParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  PAGODA_RETURN_IF_ERROR(RequireDType("HeadNorm.dtype", params.dtype, {DType::kFloat32}));
  const int32_t num_heads = params.num_q_heads + params.num_kv_heads;
  const auto norm_row = [&](float* qkv) {
    for (int32_t h = 0; h < num_heads; ++h, qkv += params.head_dim) {
      context.kernels.rms_norm_row(qkv,
                                   h < params.num_q_heads ? params.q_weight : params.k_weight,
                                   params.weight_offset,
                                   params.epsilon,
                                   params.head_dim,
                                   qkv);
    }
  };
  const int64_t cost = params.rows * num_heads * (params.head_dim / 8 + 10);
  context.ParallelFor(params.rows, cost, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      norm_row(static_cast<float*>(params.qkv) + i * params.qkv_stride);
    }
  });
  return absl::OkStatus();
}

}  // namespace pagoda::kernels::cpu
