#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/model/activations.h"
#include "engine/model/kv_pool.h"
#include "engine/model/model_config.h"
#include "engine/model/position_tables.h"
#include "engine/model/weights.h"
#include "kernels/backend.h"
#include "kernels/device_group.h"

namespace pagoda::engine {

// The ranks that share a model, seen from one of them.
struct TensorRanks {
  kernels::DeviceGroup* group = nullptr;
  int32_t first_id = 0;  // of the vocabulary, of this rank's rows of embedding and head
  int32_t num_ids = 0;   // of every rank; the last ones may be padding
};

// What one step computes with. Everything outlives the calls below, which enqueue ops on the
// backend.
struct ForwardPass {
  kernels::Backend* backend = nullptr;
  const ModelConfig* model = nullptr;
  const Weights* weights = nullptr;
  const KvPool* kv = nullptr;
  const PositionTables* positions = nullptr;
  const Activations* activations = nullptr;
  DType dtype = DType::kFloat32;  // of activations
  const kernels::AttentionBatch* batch = nullptr;
  const int32_t* tokens = nullptr;     // [batch->num_rows], on the device
  const TensorRanks* ranks = nullptr;  // null: one
};

// ---- Blocks that architectures are made of. The residual stream is activations->hidden(). Which
// norms and biases a block has is said by the weights that are there, and where nothing else is
// written every block has its scale, norm and kind of activation from the ModelConfig.

// hidden = embedding of the tokens (plus that of their positions) (normalised).
absl::Status EmbedTokens(const ForwardPass& pass);
// hidden += attention(norm(hidden)) of one layer; writes keys and values.
absl::Status AttentionBlock(const ForwardPass& pass, int32_t layer);
// hidden += down(activation(gate(x)) * up(x)) with x = norm(hidden).
absl::Status GatedMlpBlock(const ForwardPass& pass, int32_t layer);
// hidden += down(activation(up(x))) with x = norm(hidden).
absl::Status PlainMlpBlock(const ForwardPass& pass, int32_t layer);
// hidden += the weighted sum of the gated MLPs that the router chooses for each token.
absl::Status ExpertsBlock(const ForwardPass& pass, int32_t layer);
// logits = head(norm(hidden[row_indices])), [num_rows, plan().logits_stride]. REQUIRES: num_rows <=
// max_logit_rows.
absl::Status ComputeLogits(const ForwardPass& pass, const int32_t* row_indices, int64_t num_rows);

// ---- Whole models: embedding, then layers of attention and an MLP.

absl::Status RunGatedLayers(const ForwardPass& pass);
absl::Status RunPlainLayers(const ForwardPass& pass);
// Layers without experts have a gated MLP.
absl::Status RunExpertLayers(const ForwardPass& pass);

}  // namespace pagoda::engine
