#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "engine/model/weight_table.h"
#include "kernels/base/dtype.h"

namespace pagoda::engine {

inline constexpr int32_t kMaxTensorRanks = 8;

// What one tensor rank computes of a model. Attention and MLPs are divided by columns and then
// rows, so that a layer needs a sum over the ranks after each of the two; where ranks outnumber KV
// heads, several hold the same one. Norms, router and residual stream are whole on every rank.
// Embedding and head are divided by vocabulary: every rank has as many rows of them, of which the
// last ranks' last ones may be padding.
struct ModelShard {
  int32_t rank = 0;
  int32_t num_ranks = 1;
  // With the rank's numbers of heads, KV heads and inner widths.
  ModelConfig model;
  int32_t first_head = 0;
  int32_t num_all_heads = 0;
  int32_t first_id = 0;  // of the vocabulary
  int32_t num_ids = 0;   // rows on every rank; padding included

  bool is_whole() const { return num_ranks == 1; }
  // Such as "rank 1 of 2: heads 4 to 7, 2 KV heads, inner width 512, ids 128 to 255".
  std::string ToString() const;
};

// INVALID_ARGUMENT when so many ranks cannot share the model, with the reason and its numbers.
absl::Status CheckTensorRanks(const ModelConfig& model, int32_t num_ranks);

// Pure. REQUIRES: 0 <= rank < num_ranks.
absl::StatusOr<ModelShard> ShardModel(const ModelConfig& model, int32_t rank, int32_t num_ranks);

// What the rank loads of the model that it was made of.
absl::StatusOr<std::vector<WeightPlan>> PlanWeights(const ModelConfig& model,
                                                    const ModelShard& shard);

// Bytes that each of so many ranks takes for its part of the weights, as WeightBytes says it for
// one; every rank takes as many.
absl::StatusOr<uint64_t> RankWeightBytes(const ModelConfig& model, DType dtype, int32_t num_ranks);

}  // namespace pagoda::engine
