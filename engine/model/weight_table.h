#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda::engine {

// What a weight is to the forward pass. A matrix maps its columns to its rows; biases and norms are
// vectors.
enum class WeightRole : uint8_t {
  kEmbedding,
  kPositionEmbedding,
  kEmbeddingNorm,
  kEmbeddingNormBias,
  kInputNorm,  // before attention
  kInputNormBias,
  kQkv,
  kQkvBias,
  kQNorm,
  kKNorm,
  kAttentionOut,
  kAttentionOutBias,
  kAttentionOutNorm,   // of what attention adds to the residual stream
  kPostAttentionNorm,  // before the MLP
  kPostAttentionNormBias,
  kGateUp,  // in an MLP without a gate, up alone
  kGateUpBias,
  kDown,
  kDownBias,
  kRouter,
  kExpertGateUp,  // of expert after expert
  kExpertDown,
  kMlpOutNorm,  // of what the MLP adds to the residual stream
  kFinalNorm,
  kFinalNormBias,
  kLmHead,
};
inline constexpr int kNumWeightRoles = static_cast<int>(WeightRole::kLmHead) + 1;
// Layer of the weights that belong to none.
inline constexpr int32_t kNoLayer = -1;

// How tensor ranks share a tensor.
enum class WeightSplit : uint8_t {
  kWhole,  // every rank has all of it
  kRows,  // outputs are divided, in units of `unit_rows`; where ranks outnumber units, units repeat
  kPaddedRows,  // outputs are divided in equal shares, of which the last may end in rows of zeros
  kColumns,     // inputs are divided
  kFirstRank,   // a bias that is added once: zeros on the other ranks
};

// Rows of a tensor of the checkpoint. Vectors are matrices of one column.
struct WeightPart {
  std::string tensor;
  int64_t rows = 0;
  int64_t cols = 1;
  WeightSplit split = WeightSplit::kWhole;
  // Rows that stay together, such as those of a head.
  int64_t unit_rows = 1;

  // ---- Where the rows are, in a tensor that holds others too.
  int64_t tensor_rows = 0;  // of the whole tensor; 0: `rows`
  int64_t first_row = 0;
  int64_t unit_stride = 0;  // rows from one unit to the next; 0: units follow one another
  // The tensor is [cols, tensor_rows]: it maps rows to columns.
  bool transposed = false;
};

// One weight of the device: checkpoint tensors one below the other.
struct WeightSpec {
  WeightRole role = WeightRole::kEmbedding;
  int32_t layer = kNoLayer;
  bool is_vector = false;
  std::vector<WeightPart> parts;
};

// Which part of a model a worker holds.
struct WeightRange {
  int32_t first_layer = 0;
  int32_t end_layer = 0;
  bool has_embedding = true;  // the first pipeline stage
  bool has_head = true;       // the last one
  int32_t tensor_rank = 0;
  int32_t tensor_ranks = 1;
};

// The part of a tensor that a rank holds, and the row of the weight where it begins.
struct WeightSlice {
  std::string tensor;
  int64_t tensor_rows = 0, tensor_cols = 1;  // of the whole tensor
  // The tensor lies transposed in its file; rows and columns here are the weight's.
  bool transposed = false;
  int64_t row_begin = 0, row_end = 0;
  int64_t col_begin = 0, col_end = 1;
  int64_t weight_row = 0;

  int64_t rows() const { return row_end - row_begin; }
  int64_t cols() const { return col_end - col_begin; }
};

// One weight as a rank holds it.
struct WeightPlan {
  WeightRole role = WeightRole::kEmbedding;
  int32_t layer = kNoLayer;
  bool is_vector = false;
  int64_t n = 0;
  int64_t k = 1;
  std::vector<WeightSlice> slices;
};

// Rows that each of `num_ranks` holds of kPaddedRows: their products stay aligned.
int64_t PaddedShare(int64_t num_rows, int64_t num_ranks);

// What the worker of `range` loads of a model; a pure function. INVALID_ARGUMENT naming the tensor
// that the ranks cannot share.
absl::StatusOr<std::vector<WeightPlan>> PlanWeights(const std::vector<WeightSpec>& specs,
                                                    const WeightRange& range);

}  // namespace pagoda::engine
