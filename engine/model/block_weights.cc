// The checkpoint tensors of the blocks of forward_pass.h.
#include "absl/strings/str_cat.h"
#include "engine/model/forward_pass.h"

namespace pagoda::engine {
namespace {

WeightSpec Norm(WeightRole role, int32_t layer, std::string tensor, int64_t width) {
  return {.role = role,
          .layer = layer,
          .is_vector = true,
          .parts = {{.tensor = std::move(tensor), .rows = width}}};
}

// A projection and its bias have the same rows and are shared by ranks in the same way.
struct Projection {
  absl::string_view name;
  int64_t rows = 0;
  int64_t cols = 0;
  WeightSplit split = WeightSplit::kRows;
  int64_t unit_rows = 1;
};

void AddProjections(WeightRole role,
                    int32_t layer,
                    absl::string_view prefix,
                    const std::vector<Projection>& projections,
                    std::vector<WeightSpec>& specs) {
  WeightSpec spec = {.role = role, .layer = layer};
  for (const Projection& projection : projections) {
    spec.parts.push_back({.tensor = absl::StrCat(prefix, projection.name, ".weight"),
                          .rows = projection.rows,
                          .cols = projection.cols,
                          .split = projection.split,
                          .unit_rows = projection.unit_rows});
  }
  specs.push_back(std::move(spec));
}

void AddBiases(WeightRole role,
               int32_t layer,
               absl::string_view prefix,
               const std::vector<Projection>& projections,
               std::vector<WeightSpec>& specs) {
  WeightSpec spec = {.role = role, .layer = layer, .is_vector = true};
  for (const Projection& projection : projections) {
    spec.parts.push_back({.tensor = absl::StrCat(prefix, projection.name, ".bias"),
                          .rows = projection.rows,
                          .split = projection.split == WeightSplit::kColumns
                                       ? WeightSplit::kFirstRank
                                       : projection.split,
                          .unit_rows = projection.unit_rows});
  }
  specs.push_back(std::move(spec));
}

}  // namespace

void AddEmbeddingWeights(const ModelConfig& model, std::vector<WeightSpec>& specs) {
  specs.push_back({.role = WeightRole::kEmbedding,
                   .parts = {{.tensor = std::string(kEmbeddingTensor),
                              .rows = model.vocab_size,
                              .cols = model.hidden_size}}});
}

void AddAttentionWeights(const ModelConfig& model,
                         int32_t layer,
                         absl::string_view prefix,
                         std::vector<WeightSpec>& specs) {
  const int64_t hidden = model.hidden_size, head_dim = model.head_dim;
  const int64_t q_rows = model.num_heads * head_dim, kv_rows = model.num_kv_heads * head_dim;
  specs.push_back(
      Norm(WeightRole::kInputNorm, layer, absl::StrCat(prefix, "input_layernorm.weight"), hidden));
  const std::vector<Projection> qkv = {
      {.name = "self_attn.q_proj", .rows = q_rows, .cols = hidden, .unit_rows = head_dim},
      {.name = "self_attn.k_proj", .rows = kv_rows, .cols = hidden, .unit_rows = head_dim},
      {.name = "self_attn.v_proj", .rows = kv_rows, .cols = hidden, .unit_rows = head_dim}};
  AddProjections(WeightRole::kQkv, layer, prefix, qkv, specs);
  if (model.qkv_bias) AddBiases(WeightRole::kQkvBias, layer, prefix, qkv, specs);
  const std::vector<Projection> out = {
      {.name = "self_attn.o_proj", .rows = hidden, .cols = q_rows, .split = WeightSplit::kColumns}};
  AddProjections(WeightRole::kAttentionOut, layer, prefix, out, specs);
  if (model.o_bias) AddBiases(WeightRole::kAttentionOutBias, layer, prefix, out, specs);
}

void AddGatedMlpWeights(const ModelConfig& model,
                        int32_t layer,
                        absl::string_view prefix,
                        std::vector<WeightSpec>& specs) {
  const int64_t hidden = model.hidden_size, inner = model.intermediate_size;
  specs.push_back(Norm(WeightRole::kPostAttentionNorm,
                       layer,
                       absl::StrCat(prefix, "post_attention_layernorm.weight"),
                       hidden));
  const std::vector<Projection> gate_up = {{.name = "mlp.gate_proj", .rows = inner, .cols = hidden},
                                           {.name = "mlp.up_proj", .rows = inner, .cols = hidden}};
  AddProjections(WeightRole::kGateUp, layer, prefix, gate_up, specs);
  if (model.mlp_bias) AddBiases(WeightRole::kGateUpBias, layer, prefix, gate_up, specs);
  const std::vector<Projection> down = {
      {.name = "mlp.down_proj", .rows = hidden, .cols = inner, .split = WeightSplit::kColumns}};
  AddProjections(WeightRole::kDown, layer, prefix, down, specs);
  if (model.mlp_bias) AddBiases(WeightRole::kDownBias, layer, prefix, down, specs);
}

void AddHeadWeights(const ModelConfig& model, std::vector<WeightSpec>& specs) {
  specs.push_back(Norm(WeightRole::kFinalNorm, kNoLayer, "model.norm.weight", model.hidden_size));
  if (model.tie_word_embeddings) return;
  specs.push_back({.role = WeightRole::kLmHead,
                   .parts = {{.tensor = std::string(kHeadTensor),
                              .rows = model.vocab_size,
                              .cols = model.hidden_size}}});
}

}  // namespace pagoda::engine
