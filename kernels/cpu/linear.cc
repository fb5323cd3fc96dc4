#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/cpu/ops.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels::cpu {
namespace {

// Below this many rows the weight is read once by one thread a panel; above, rows are divided too.
constexpr int64_t kRowsWorthDividing = 32;

absl::Status Supported(const LinearParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireDType(
      "Linear.weight.dtype", params.weight.dtype, {DType::kFloat32, DType::kBFloat16}));
  PAGODA_RETURN_IF_ERROR(RequireDType("Linear.x_dtype", params.x_dtype, {DType::kFloat32}));
  PAGODA_RETURN_IF_ERROR(RequireDType("Linear.y_dtype", params.y_dtype, {DType::kFloat32}));
  if (params.weight.format != WeightFormat::kPanel16) {
    return absl::InvalidArgumentError(
        "Linear.weight.format is row-major; the cpu backend expects what PreferredFormat gives, "
        "kPanel16");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Linear(Context& context, const LinearParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  PAGODA_RETURN_IF_ERROR(Supported(params));
  if (params.m == 0) return absl::OkStatus();
  const LinearWeight& weight = params.weight;
  const Element element = weight.dtype == DType::kFloat32 ? Element::kFloat32 : Element::kBFloat16;
  const int64_t row_bytes = context.kernels.x_row_bytes(weight.k, element);
  PAGODA_ASSIGN_OR_RETURN(void* const scratch,
                          context.shared_scratch.Reserve(params.m * row_bytes));
  char* const x = static_cast<char*>(scratch);

  context.ParallelFor(params.m, params.m * weight.k / 8, [&](int64_t begin, int64_t end, int) {
    context.kernels.prepare_x(static_cast<const float*>(params.x) + begin * params.x_stride,
                              params.x_stride,
                              end - begin,
                              weight.k,
                              element,
                              x + begin * row_bytes);
  });

  const int64_t num_panels = (weight.n + kPanelRows - 1) / kPanelRows;
  if (params.m >= kRowsWorthWidening) {
    for (Scratch& thread : context.thread_scratch) {
      PAGODA_RETURN_IF_ERROR(thread.Reserve(WidePanelBytes((weight.k + 1) / 2)).status());
    }
  }
  const auto run = [&](int64_t row_begin,
                       int64_t row_end,
                       int64_t panel_begin,
                       int64_t panel_end,
                       int thread_idx) {
    const LinearBlock block = {
        .x = x + row_begin * row_bytes,
        .x_stride_bytes = row_bytes,
        .weight = weight.data,
        .bias = static_cast<const float*>(params.bias),
        .residual = params.residual == nullptr
                        ? nullptr
                        : static_cast<const float*>(params.residual) + row_begin * params.y_stride,
        .y = static_cast<float*>(params.y) + row_begin * params.y_stride,
        .y_stride = params.y_stride,
        .num_rows = row_end - row_begin,
        .panel_begin = panel_begin,
        .panel_end = panel_end,
        .n = weight.n,
        .num_k_pairs = (weight.k + 1) / 2,
        .wide_panel = static_cast<float*>(context.thread_scratch[thread_idx].data()),
    };
    context.kernels.linear_block(block, element);
  };
  const int64_t cost = weight.n * weight.k / 16 * (1 + params.m / 8);
  if (params.m >= kRowsWorthDividing * context.pool.num_threads()) {
    context.ParallelFor(params.m, cost, [&](int64_t begin, int64_t end, int thread_idx) {
      run(begin, end, 0, num_panels, thread_idx);
    });
  } else {
    context.ParallelFor(num_panels, cost, [&](int64_t begin, int64_t end, int thread_idx) {
      run(0, params.m, begin, end, thread_idx);
    });
  }
  return absl::OkStatus();
}

}  // namespace pagoda::kernels::cpu
