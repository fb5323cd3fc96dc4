#include "kernels/ops/moe.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/cpu/ops.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels::cpu {
namespace {

// Panels of one piece of work: a few hundred kilobytes of weights, so that threads stay busy to the
// end and a piece still outweighs the taking of it.
constexpr int64_t kPanelsPerTask = 8;

// Writes a row's choices, best first, and their weights.
void ChooseExperts(const RouteExpertsParams& params, int64_t row) {
  const float* logits = params.logits + row * params.num_experts;
  int32_t* experts = params.routing.row_experts + row * params.top_k;
  float* weights = params.routing.row_weights + row * params.top_k;
  const float max = *std::max_element(logits, logits + params.num_experts);
  float sum = 0.0f;
  for (int32_t e = 0; e < params.num_experts; ++e) sum += std::exp(logits[e] - max);
  // Insertion keeps equal logits in order of id.
  int32_t count = 0;
  for (int32_t e = 0; e < params.num_experts; ++e) {
    int32_t place = count;
    while (place > 0 && logits[experts[place - 1]] < logits[e]) --place;
    if (place == params.top_k) continue;
    count = std::min(count + 1, params.top_k);
    for (int32_t j = count - 1; j > place; --j) experts[j] = experts[j - 1];
    experts[place] = e;
  }
  float chosen = 0.0f;
  for (int32_t j = 0; j < params.top_k; ++j) {
    weights[j] = std::exp(logits[experts[j]] - max) / sum;
    chosen += weights[j];
  }
  if (!params.normalise) return;
  for (int32_t j = 0; j < params.top_k; ++j) weights[j] /= chosen;
}

// Entry numbers by expert, then by row.
void SortByExpert(const RouteExpertsParams& params) {
  const ExpertRouting& routing = params.routing;
  const int32_t* experts = routing.row_experts;
  const int64_t num_entries = params.rows * params.top_k;
  int32_t* offsets = routing.group_offsets;
  std::fill(offsets, offsets + params.num_experts + 1, 0);
  for (int64_t i = 0; i < num_entries; ++i) ++offsets[experts[i] + 1];
  for (int32_t e = 0; e < params.num_experts; ++e) offsets[e + 1] += offsets[e];
  std::vector<int32_t> next(offsets, offsets + params.num_experts);
  for (int64_t i = 0; i < num_entries; ++i) {
    const int32_t entry = next[experts[i]]++;
    routing.entry_rows[entry] = static_cast<int32_t>(i / params.top_k);
    routing.row_entries[i] = entry;
  }
}

// The panels of one group.
struct Task {
  int32_t group = 0;
  int64_t panel_begin = 0;
  int64_t panel_end = 0;
};

std::vector<Task> MakeTasks(const GroupedLinearParams& params, int64_t num_panels) {
  std::vector<Task> tasks;
  for (int32_t g = 0; g < params.num_groups; ++g) {
    if (params.group_offsets[g] == params.group_offsets[g + 1]) continue;
    for (int64_t p = 0; p < num_panels; p += kPanelsPerTask) {
      tasks.push_back({g, p, std::min(p + kPanelsPerTask, num_panels)});
    }
  }
  return tasks;
}

absl::Status CheckOffsets(const GroupedLinearParams& params) {
  int64_t last = 0;
  for (int32_t g = 0; g <= params.num_groups; ++g) {
    PAGODA_RETURN_IF_ERROR(RequireBetween(
        "GroupedLinear.group_offsets entry", params.group_offsets[g], last, params.num_entries));
    last = params.group_offsets[g];
  }
  return absl::OkStatus();
}

absl::Status Supported(const GroupedLinearParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireDType(
      "GroupedLinear.weight.dtype", params.weight.dtype, {DType::kFloat32, DType::kBFloat16}));
  PAGODA_RETURN_IF_ERROR(RequireDType("GroupedLinear.dtype", params.dtype, {DType::kFloat32}));
  if (params.weight.format != WeightFormat::kPanel16) {
    return absl::InvalidArgumentError(
        "GroupedLinear.weight.format is row-major; the cpu backend expects what PreferredFormat "
        "gives, kPanel16");
  }
  // A panel belongs to one group.
  return RequireMultiple("GroupedLinear.weight.n / num_groups", params.n(), kPanelRows);
}

}  // namespace

absl::Status RouteExperts(Context&, const RouteExpertsParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  for (int64_t row = 0; row < params.rows; ++row) ChooseExperts(params, row);
  SortByExpert(params);
  return absl::OkStatus();
}

absl::Status GroupedLinear(Context& context, const GroupedLinearParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  PAGODA_RETURN_IF_ERROR(Supported(params));
  if (params.num_entries == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(CheckOffsets(params));
  const LinearWeight& weight = params.weight;
  const Element element = weight.dtype == DType::kFloat32 ? Element::kFloat32 : Element::kBFloat16;
  const int64_t row_bytes = context.kernels.x_row_bytes(weight.k, element);
  PAGODA_ASSIGN_OR_RETURN(void* const scratch,
                          context.shared_scratch.Reserve(params.num_entries * row_bytes));
  char* const x = static_cast<char*>(scratch);
  // Gathers: entries of one expert follow one another in what linear_block reads.
  context.ParallelFor(
      params.num_entries, params.num_entries * weight.k / 8, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t row = params.entry_rows == nullptr ? i : params.entry_rows[i];
          context.kernels.prepare_x(static_cast<const float*>(params.x) + row * params.x_stride,
                                    params.x_stride,
                                    1,
                                    weight.k,
                                    element,
                                    x + i * row_bytes);
        }
      });

  const int64_t n = params.n();
  const int64_t num_panels = n / kPanelRows;
  const int64_t num_k_pairs = (weight.k + 1) / 2;
  const int64_t group_bytes = n * num_k_pairs * 2 * static_cast<int64_t>(DTypeBytes(weight.dtype));
  if (params.num_entries >= kRowsWorthWidening) {
    for (Scratch& thread : context.thread_scratch) {
      PAGODA_RETURN_IF_ERROR(thread.Reserve(WidePanelBytes(num_k_pairs)).status());
    }
  }
  const std::vector<Task> tasks = MakeTasks(params, num_panels);
  std::atomic<size_t> next{0};
  const auto work = [&](int thread_idx) {
    for (size_t i = next.fetch_add(1, std::memory_order_relaxed); i < tasks.size();
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      const Task& task = tasks[i];
      const int64_t first = params.group_offsets[task.group];
      context.kernels.linear_block(
          {.x = x + first * row_bytes,
           .x_stride_bytes = row_bytes,
           .weight = static_cast<const char*>(weight.data) + task.group * group_bytes,
           .y = static_cast<float*>(params.y) + first * n,
           .y_stride = n,
           .num_rows = params.group_offsets[task.group + 1] - first,
           .panel_begin = task.panel_begin,
           .panel_end = task.panel_end,
           .n = n,
           .num_k_pairs = num_k_pairs,
           .wide_panel = static_cast<float*>(context.thread_scratch[thread_idx].data())},
          element);
    }
  };
  if (tasks.size() == 1) {
    work(0);
  } else {
    context.pool.Run(work);
  }
  return absl::OkStatus();
}

absl::Status CombineExperts(Context& context, const CombineExpertsParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  PAGODA_RETURN_IF_ERROR(RequireDType("CombineExperts.dtype", params.dtype, {DType::kFloat32}));
  const int64_t cost = params.rows * params.top_k * params.width / 8;
  context.ParallelFor(params.rows, cost, [&](int64_t begin, int64_t end, int) {
    float* const y = static_cast<float*>(params.y);
    if (!params.adds) std::fill(y + begin * params.width, y + end * params.width, 0.0f);
    for (int64_t i = begin * params.top_k; i < end * params.top_k; ++i) {
      context.kernels.add_scaled_row(
          static_cast<const float*>(params.x) + params.row_entries[i] * params.width,
          params.row_weights[i],
          params.width,
          y + i / params.top_k * params.width);
    }
  });
  return absl::OkStatus();
}

}  // namespace pagoda::kernels::cpu
