#include "engine/model/model_shard.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/model/architecture.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

absl::Status CannotDivide(absl::string_view what, int32_t count, int32_t num_ranks) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%d tensor ranks cannot share the model: its %s of %d is no multiple of %d",
                      num_ranks,
                      what,
                      count,
                      num_ranks));
}

// All heads of q as one row cannot be normalised by a rank that has some of them.
bool NormalisesAllHeads(const ModelConfig& model) {
  const Architecture* const architecture = FindArchitecture(model.architecture);
  return architecture != nullptr && !architecture->tensors.q_norm.empty() &&
         !architecture->tensors.head_norms;
}

}  // namespace

absl::Status CheckTensorRanks(const ModelConfig& model, int32_t num_ranks) {
  if (num_ranks < 1 || num_ranks > kMaxTensorRanks) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d tensor ranks, expected 1 to %d", num_ranks, kMaxTensorRanks));
  }
  if (num_ranks == 1) return absl::OkStatus();
  const int32_t kv_heads = model.num_kv_heads;
  const bool divides = kv_heads % num_ranks == 0 || num_ranks % kv_heads == 0;
  if (model.num_heads % num_ranks != 0 || !divides) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d tensor ranks cannot share the model: it has %d query heads and %d KV heads; expected a "
        "number of ranks that divides the first, and divides or is a multiple of the second",
        num_ranks,
        model.num_heads,
        kv_heads));
  }
  if (NormalisesAllHeads(model)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d tensor ranks cannot share the model: %s normalises the queries of all "
                        "heads together; expected 1",
                        num_ranks,
                        model.architecture));
  }
  for (int32_t layer = 0; layer < model.num_layers; ++layer) {
    if (!model.HasExperts(layer) && model.intermediate_size % num_ranks != 0) {
      return CannotDivide("intermediate_size", model.intermediate_size, num_ranks);
    }
  }
  if (model.experts && model.experts->intermediate_size % num_ranks != 0) {
    return CannotDivide(
        "intermediate size of experts", model.experts->intermediate_size, num_ranks);
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelShard> ShardModel(const ModelConfig& model, int32_t rank, int32_t num_ranks) {
  PAGODA_RETURN_IF_ERROR(CheckTensorRanks(model, num_ranks));
  ModelShard shard = {.rank = rank, .num_ranks = num_ranks, .model = model};
  shard.model.num_heads = model.num_heads / num_ranks;
  shard.model.num_kv_heads = std::max(model.num_kv_heads / num_ranks, 1);
  shard.model.intermediate_size = model.intermediate_size / num_ranks;
  if (shard.model.experts) shard.model.experts->intermediate_size /= num_ranks;
  shard.first_head = rank * shard.model.num_heads;
  shard.num_all_heads = model.num_heads;
  shard.num_ids = static_cast<int32_t>(PaddedShare(model.vocab_size, num_ranks));
  shard.first_id = rank * shard.num_ids;
  return shard;
}

absl::StatusOr<std::vector<WeightPlan>> PlanWeights(const ModelConfig& model,
                                                    const ModelShard& shard) {
  const Architecture* const architecture = FindArchitecture(model.architecture);
  PAGODA_CHECK(architecture != nullptr);
  return PlanWeights(
      architecture->weights(model),
      {.end_layer = model.num_layers, .tensor_rank = shard.rank, .tensor_ranks = shard.num_ranks});
}

absl::StatusOr<uint64_t> RankWeightBytes(const ModelConfig& model, DType dtype, int32_t num_ranks) {
  PAGODA_ASSIGN_OR_RETURN(const ModelShard shard, ShardModel(model, 0, num_ranks));
  PAGODA_ASSIGN_OR_RETURN(const std::vector<WeightPlan> plans, PlanWeights(model, shard));
  uint64_t size_bytes = 0;
  for (const WeightPlan& plan : plans) {
    size_bytes += static_cast<uint64_t>(plan.n * plan.k) *
                  DTypeBytes(plan.is_vector ? DType::kFloat32 : dtype);
  }
  return size_bytes;
}

std::string ModelShard::ToString() const {
  std::string text = absl::StrFormat("rank %d of %d: heads %d to %d, %d KV heads, inner width %d",
                                     rank,
                                     num_ranks,
                                     first_head,
                                     first_head + model.num_heads - 1,
                                     model.num_kv_heads,
                                     model.intermediate_size);
  if (model.experts) {
    absl::StrAppend(&text, ", of experts ", model.experts->intermediate_size);
  }
  if (first_id >= model.vocab_size) return absl::StrCat(text, ", no ids");
  const int32_t end_id = std::min(first_id + num_ids, model.vocab_size);
  absl::StrAppend(&text, ", ids ", first_id, " to ", end_id - 1);
  return text;
}

}  // namespace pagoda::engine
