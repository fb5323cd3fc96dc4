#include <cstring>

#include "kernels/base/status_macros.h"
#include "kernels/cpu/ops.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels::cpu {

absl::Status ResolveTokens(const ResolveTokensParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  for (int64_t i = 0; i < params.rows; ++i) {
    const int32_t slot = params.source_slots[i];
    if (slot >= params.num_slots) {
      return RequireBetween("ResolveTokens.source_slots entry", slot, -1, params.num_slots - 1);
    }
    params.tokens[i] = slot < 0 ? params.host_tokens[i] : params.last_tokens[slot];
  }
  return absl::OkStatus();
}

absl::Status Scatter(const ScatterParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  for (int64_t i = 0; i < params.count; ++i) {
    const int32_t place = params.pairs[2 * i];
    if (place < 0 || place >= params.size) {
      return RequireBetween("Scatter.pairs index", place, 0, params.size - 1);
    }
    params.to[place] = params.pairs[2 * i + 1];
  }
  return absl::OkStatus();
}

absl::Status GatherRows(Context& context, const GatherRowsParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  const int64_t row_bytes = params.width * static_cast<int64_t>(DTypeBytes(params.dtype));
  context.ParallelFor(
      params.rows, params.rows * row_bytes / 16, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          std::memcpy(static_cast<char*>(params.y) + i * row_bytes,
                      static_cast<const char*>(params.x) + params.indices[i] * row_bytes,
                      row_bytes);
        }
      });
  return absl::OkStatus();
}

absl::Status RmsNorm(Context& context, const RmsNormParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  PAGODA_RETURN_IF_ERROR(RequireDType("RmsNorm.dtype", params.dtype, {DType::kFloat32}));
  context.ParallelFor(
      params.rows, params.rows * params.width / 8, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          context.kernels.rms_norm_row(static_cast<const float*>(params.x) + i * params.x_stride,
                                       params.weight,
                                       params.weight_offset,
                                       params.epsilon,
                                       params.width,
                                       static_cast<float*>(params.y) + i * params.y_stride);
        }
      });
  return absl::OkStatus();
}

absl::Status SiluMul(Context& context, const SiluMulParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  PAGODA_RETURN_IF_ERROR(RequireDType("SiluMul.dtype", params.dtype, {DType::kFloat32}));
  context.ParallelFor(
      params.rows, params.rows * params.width / 2, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          const float* gate = static_cast<const float*>(params.gate_up) + i * 2 * params.width;
          context.kernels.silu_mul_row(gate,
                                       gate + params.width,
                                       params.width,
                                       static_cast<float*>(params.y) + i * params.width);
        }
      });
  return absl::OkStatus();
}

}  // namespace pagoda::kernels::cpu
