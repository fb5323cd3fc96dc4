#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/model/activations.h"
#include "engine/model/kv_pool.h"
#include "engine/model/model_config.h"
#include "engine/model/rope_table.h"
#include "engine/model/weights.h"
#include "kernels/backend.h"

namespace pagoda::engine {

// What one step computes with. Everything outlives the calls below, which enqueue ops on the
// backend.
struct ForwardPass {
  kernels::Backend* backend = nullptr;
  const ModelConfig* model = nullptr;
  const Weights* weights = nullptr;
  const KvPool* kv = nullptr;
  const RopeTable* rope = nullptr;
  const Activations* activations = nullptr;
  DType dtype = DType::kFloat32;  // of activations
  const kernels::AttentionBatch* batch = nullptr;
  const int32_t* tokens = nullptr;  // [batch->num_rows], on the device
};

// ---- Blocks that architectures are made of. The residual stream is activations->hidden().

// hidden = embedding of the tokens.
absl::Status EmbedTokens(const ForwardPass& pass);
// hidden += attention(norm(hidden)) of one layer; writes keys and values.
absl::Status AttentionBlock(const ForwardPass& pass, int32_t layer);
// hidden += down(silu(gate(x)) * up(x)) with x = norm(hidden).
absl::Status GatedMlpBlock(const ForwardPass& pass, int32_t layer);
// logits = head(norm(hidden[row_indices])), [num_rows, plan().logits_stride]. REQUIRES: num_rows <=
// max_logit_rows.
absl::Status ComputeLogits(const ForwardPass& pass, const int32_t* row_indices, int64_t num_rows);

// ---- The tensors of those blocks, under the names that Hugging Face checkpoints give them.
// `prefix` is that of the layer, such as "model.layers.0.".

inline constexpr absl::string_view kEmbeddingTensor = "model.embed_tokens.weight";
inline constexpr absl::string_view kHeadTensor = "lm_head.weight";

void AddEmbeddingWeights(const ModelConfig& model, std::vector<WeightSpec>& specs);
void AddAttentionWeights(const ModelConfig& model,
                         int32_t layer,
                         absl::string_view prefix,
                         std::vector<WeightSpec>& specs);
void AddGatedMlpWeights(const ModelConfig& model,
                        int32_t layer,
                        absl::string_view prefix,
                        std::vector<WeightSpec>& specs);
// The final norm and, unless it is tied to the embedding, lm_head.
void AddHeadWeights(const ModelConfig& model, std::vector<WeightSpec>& specs);

}  // namespace pagoda::engine
