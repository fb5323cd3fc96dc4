#include "engine/model/weight_table.h"

#include <algorithm>
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
  switch (spec.role) {
    case WeightRole::kEmbedding:
    case WeightRole::kPositionEmbedding:
    case WeightRole::kEmbeddingNorm:
    case WeightRole::kEmbeddingNormBias:
      return range.has_embedding;
    default:
      return range.has_head;
  }
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

// Rows [row_begin, row_end) of the part are the rank's.
struct Share {
  int64_t row_begin = 0, row_end = 0;
  int64_t col_begin = 0, col_end = 1;
};

int64_t PaddedRows(const WeightPart& part, const WeightRange& range) {
  return PaddedShare(part.rows, range.tensor_ranks);
}

absl::StatusOr<Share> ShareOf(const WeightPart& part, const WeightRange& range) {
  Share share = {.row_end = part.rows, .col_end = part.cols};
  const int64_t rank = range.tensor_rank, ranks = range.tensor_ranks;
  if (part.split == WeightSplit::kColumns) {
    if (part.cols % ranks != 0) return CannotShare(part, part.cols, "columns", range);
    const int64_t cols = part.cols / ranks;
    share.col_begin = rank * cols;
    share.col_end = share.col_begin + cols;
  } else if (part.split == WeightSplit::kRows) {
    const int64_t units = part.rows / part.unit_rows;
    if (units % ranks != 0 && ranks % units != 0) {
      return CannotShare(part, units, "units of rows", range);
    }
    const int64_t units_held = units >= ranks ? units / ranks : 1;
    const int64_t first_unit = units >= ranks ? rank * units_held : rank * units / ranks;
    share.row_begin = first_unit * part.unit_rows;
    share.row_end = share.row_begin + units_held * part.unit_rows;
  } else if (part.split == WeightSplit::kPaddedRows) {
    const int64_t rows = PaddedRows(part, range);
    share.row_begin = std::min(rank * rows, part.rows);
    share.row_end = std::min(share.row_begin + rows, part.rows);
  } else if (part.split == WeightSplit::kFirstRank && rank != 0) {
    share.row_end = 0;
  }
  return share;
}

// Rows of the weight that are the part's, those of zeros included: a bias of the first rank only is
// zeros on the others.
int64_t RowsHeld(const WeightPart& part, const Share& share, const WeightRange& range) {
  if (part.split == WeightSplit::kFirstRank) return part.rows;
  if (part.split == WeightSplit::kPaddedRows) return PaddedRows(part, range);
  return share.row_end - share.row_begin;
}

// One slice where the rows lie together in the tensor, else one a unit.
void AddSlices(const WeightPart& part, const Share& share, WeightPlan& plan) {
  const bool together = part.unit_stride == 0 || part.unit_stride == part.unit_rows;
  const int64_t step = together ? share.row_end - share.row_begin : part.unit_rows;
  int64_t row = share.row_begin;
  do {
    const int64_t tensor_row =
        part.first_row + (together ? row : row / part.unit_rows * part.unit_stride);
    plan.slices.push_back({.tensor = part.tensor,
                           .tensor_rows = part.tensor_rows == 0 ? part.rows : part.tensor_rows,
                           .tensor_cols = part.cols,
                           .transposed = part.transposed,
                           .row_begin = tensor_row,
                           .row_end = tensor_row + step,
                           .col_begin = share.col_begin,
                           .col_end = share.col_end,
                           .weight_row = plan.n + row - share.row_begin});
    row += step;
  } while (row < share.row_end);
}

}  // namespace

int64_t PaddedShare(int64_t num_rows, int64_t num_ranks) {
  if (num_ranks == 1) return num_rows;
  // 16 bytes of the narrowest type.
  constexpr int64_t kAlignment = 8;
  const int64_t share = (num_rows + num_ranks - 1) / num_ranks;
  return (share + kAlignment - 1) / kAlignment * kAlignment;
}

absl::StatusOr<std::vector<WeightPlan>> PlanWeights(const std::vector<WeightSpec>& specs,
                                                    const WeightRange& range) {
  std::vector<WeightPlan> plans;
  for (const WeightSpec& spec : specs) {
    if (!IsHeld(spec, range)) continue;
    WeightPlan plan = {.role = spec.role, .layer = spec.layer, .is_vector = spec.is_vector};
    for (const WeightPart& part : spec.parts) {
      PAGODA_ASSIGN_OR_RETURN(const Share share, ShareOf(part, range));
      AddSlices(part, share, plan);
      plan.n += RowsHeld(part, share, range);
      plan.k = share.col_end - share.col_begin;
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace pagoda::engine
