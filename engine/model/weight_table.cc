#include "engine/model/weight_table.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

bool IsHeld(const WeightSpec& spec, const WeightRange& range) {
  if (spec.layer != kNoLayer) {
    return spec.layer >= range.first_layer && spec.layer < range.end_layer;
  }
  return spec.role == WeightRole::kEmbedding ? range.has_embedding : range.has_head;
}

absl::Status CannotShare(const WeightPart& part,
                         int64_t count,
                         const char* what,
                         const WeightRange& range) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '",
                   part.tensor,
                   "' has ",
                   count,
                   " ",
                   what,
                   ", which ",
                   range.tensor_ranks,
                   " tensor ranks cannot share; expected a number of ranks that divides it"));
}

absl::StatusOr<WeightSlice> Slice(const WeightPart& part, const WeightRange& range) {
  WeightSlice slice = {.tensor = part.tensor,
                       .tensor_rows = part.rows,
                       .tensor_cols = part.cols,
                       .row_end = part.rows,
                       .col_end = part.cols};
  const int64_t rank = range.tensor_rank, ranks = range.tensor_ranks;
  if (part.split == WeightSplit::kColumns) {
    if (part.cols % ranks != 0) return CannotShare(part, part.cols, "columns", range);
    const int64_t cols = part.cols / ranks;
    slice.col_begin = rank * cols;
    slice.col_end = slice.col_begin + cols;
  } else if (part.split == WeightSplit::kRows) {
    const int64_t units = part.rows / part.unit_rows;
    if (units % ranks != 0 && ranks % units != 0) {
      return CannotShare(part, units, "units of rows", range);
    }
    const int64_t units_held = units >= ranks ? units / ranks : 1;
    const int64_t first_unit = units >= ranks ? rank * units_held : rank * units / ranks;
    slice.row_begin = first_unit * part.unit_rows;
    slice.row_end = slice.row_begin + units_held * part.unit_rows;
  } else if (part.split == WeightSplit::kFirstRank && rank != 0) {
    slice.row_end = 0;
  }
  return slice;
}

}  // namespace

absl::StatusOr<std::vector<WeightPlan>> PlanWeights(const std::vector<WeightSpec>& specs,
                                                    const WeightRange& range) {
  std::vector<WeightPlan> plans;
  for (const WeightSpec& spec : specs) {
    if (!IsHeld(spec, range)) continue;
    WeightPlan plan = {.role = spec.role, .layer = spec.layer, .is_vector = spec.is_vector};
    for (const WeightPart& part : spec.parts) {
      PAGODA_ASSIGN_OR_RETURN(WeightSlice slice, Slice(part, range));
      slice.weight_row = plan.n;
      // A bias of the first rank only is a vector of zeros on the others.
      plan.n += part.split == WeightSplit::kFirstRank ? part.rows : slice.rows();
      plan.k = slice.cols();
      plan.slices.push_back(std::move(slice));
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace pagoda::engine
