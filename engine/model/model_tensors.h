#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/model/model_config.h"
#include "engine/model/weight_table.h"

namespace pagoda::engine {

// How one tensor holds q, k and v.
enum class FusedQkv : uint8_t {
  kBlocks,  // all of q, then k, then v
  kByHead,  // q, k and v of the first head, then of the second
};

// The names that an architecture's checkpoints give to the tensors of forward_pass.h's blocks,
// without ".weight" and ".bias". An empty name: the architecture has no such tensor. Which of the
// rest exist (biases, experts, lm_head) and their shapes follow from the ModelConfig.
struct ModelTensors {
  absl::string_view prefix = "model.";
  bool prefix_is_optional = false;  // older checkpoints lack it

  absl::string_view embedding = "embed_tokens";
  absl::string_view position_embedding;
  absl::string_view embedding_norm;
  absl::string_view layers = "layers.";
  absl::string_view final_norm = "norm";
  absl::string_view head = "lm_head";  // not under the prefix

  // ---- Within a layer.
  absl::string_view input_norm = "input_layernorm";
  absl::string_view q = "self_attn.q_proj";
  absl::string_view k = "self_attn.k_proj";
  absl::string_view v = "self_attn.v_proj";
  absl::string_view qkv;  // in place of q, k and v
  FusedQkv fused_qkv = FusedQkv::kBlocks;
  absl::string_view q_norm;
  absl::string_view k_norm;
  bool head_norms = true;  // q and k norms of each head; else of all heads together
  absl::string_view attention_out = "self_attn.o_proj";
  absl::string_view attention_out_norm;
  absl::string_view mlp_norm = "post_attention_layernorm";
  absl::string_view gate = "mlp.gate_proj";  // an MLP without a gate has none
  absl::string_view up = "mlp.up_proj";
  absl::string_view gate_up;  // in place of gate and up
  absl::string_view down = "mlp.down_proj";
  absl::string_view mlp_out_norm;
  absl::string_view router;
  absl::string_view experts;  // the prefix of "0.", "1.", ...
  absl::string_view expert_gate = "gate_proj";
  absl::string_view expert_up = "up_proj";
  absl::string_view expert_down = "down_proj";

  // Matrices of layers are [inputs, outputs].
  bool transposed = false;

  std::string embedding_tensor() const;
  std::string head_tensor() const;
};

// The tensors of the whole model; a pure function.
std::vector<WeightSpec> MakeWeightSpecs(const ModelTensors& tensors, const ModelConfig& model);

}  // namespace pagoda::engine
