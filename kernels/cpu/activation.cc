#include "kernels/ops/activation.h"

#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/cpu/ops.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels::cpu {
namespace {

// Arrays without rows are divided into pieces of this many elements.
constexpr int64_t kPiece = 4096;

}  // namespace

absl::Status Activate(Context& context, const ActivateParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  PAGODA_RETURN_IF_ERROR(RequireDType("Activate.dtype", params.dtype, {DType::kFloat32}));
  const int64_t x_width = params.gated ? 2 * params.width : params.width;
  context.ParallelFor(
      params.rows, params.rows * params.width / 2, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          const float* x = static_cast<const float*>(params.x) + i * x_width;
          context.kernels.activate_row(x,
                                       params.gated ? x + params.width : nullptr,
                                       params.activation,
                                       params.width,
                                       static_cast<float*>(params.y) + i * params.width);
        }
      });
  return absl::OkStatus();
}

absl::Status AddScaled(Context& context, const AddScaledParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  PAGODA_RETURN_IF_ERROR(RequireDType("AddScaled.dtype", params.dtype, {DType::kFloat32}));
  const int64_t num_pieces = (params.count + kPiece - 1) / kPiece;
  context.ParallelFor(num_pieces, params.count / 8, [&](int64_t begin, int64_t end, int) {
    const int64_t first = begin * kPiece;
    context.kernels.add_scaled_row(static_cast<const float*>(params.x) + first,
                                   params.scale,
                                   std::min(end * kPiece, params.count) - first,
                                   static_cast<float*>(params.y) + first);
  });
  return absl::OkStatus();
}

absl::Status AdjustLogits(Context& context, const AdjustLogitsParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  const int64_t pieces_per_row = (params.width + kPiece - 1) / kPiece;
  const int64_t cost = params.rows * params.width / (params.soft_cap > 0.0f ? 2 : 8);
  context.ParallelFor(params.rows * pieces_per_row, cost, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % pieces_per_row * kPiece;
      context.kernels.adjust_logits_row(params.scale,
                                        params.soft_cap,
                                        std::min(kPiece, params.width - first),
                                        params.logits + i / pieces_per_row * params.stride + first);
    }
  });
  return absl::OkStatus();
}

}  // namespace pagoda::kernels::cpu
