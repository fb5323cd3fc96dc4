#include "engine/model/model_tensors.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace pagoda::engine {
namespace {

// A projection and its bias have the same rows and are shared by ranks in the same way.
struct Projection {
  absl::string_view name;
  int64_t rows = 0;
  int64_t cols = 0;
  WeightSplit split = WeightSplit::kRows;
  int64_t unit_rows = 1;
  // In a tensor that holds others too, as in WeightPart.
  int64_t tensor_rows = 0;
  int64_t first_row = 0;
  int64_t unit_stride = 0;
};

// Adds the tensors of one layer, or of none.
class SpecAdder {
 public:
  SpecAdder(std::string prefix, int32_t layer, std::vector<WeightSpec>& specs)
      : prefix_(std::move(prefix)), layer_(layer), specs_(specs) {}

  void Vector(WeightRole role, absl::string_view tensor, int64_t width) {
    if (tensor.empty()) return;
    specs_.push_back({.role = role,
                      .layer = layer_,
                      .is_vector = true,
                      .parts = {{.tensor = absl::StrCat(prefix_, tensor), .rows = width}}});
  }

  void Norm(WeightRole weight, absl::string_view name, int64_t width) {
    if (!name.empty()) Vector(weight, absl::StrCat(name, ".weight"), width);
  }
  void NormBias(WeightRole bias, absl::string_view name, int64_t width) {
    if (!name.empty()) Vector(bias, absl::StrCat(name, ".bias"), width);
  }

  void Matrix(WeightRole role, const std::vector<Projection>& projections, bool transposed) {
    WeightSpec spec = {.role = role, .layer = layer_};
    for (const Projection& projection : projections) {
      spec.parts.push_back({.tensor = absl::StrCat(prefix_, projection.name, ".weight"),
                            .rows = projection.rows,
                            .cols = projection.cols,
                            .split = projection.split,
                            .unit_rows = projection.unit_rows,
                            .tensor_rows = projection.tensor_rows,
                            .first_row = projection.first_row,
                            .unit_stride = projection.unit_stride,
                            .transposed = transposed});
    }
    specs_.push_back(std::move(spec));
  }

  void Bias(WeightRole role, const std::vector<Projection>& projections) {
    WeightSpec spec = {.role = role, .layer = layer_, .is_vector = true};
    for (const Projection& projection : projections) {
      spec.parts.push_back({.tensor = absl::StrCat(prefix_, projection.name, ".bias"),
                            .rows = projection.rows,
                            .split = projection.split == WeightSplit::kColumns
                                         ? WeightSplit::kFirstRank
                                         : projection.split,
                            .unit_rows = projection.unit_rows,
                            .tensor_rows = projection.tensor_rows,
                            .first_row = projection.first_row,
                            .unit_stride = projection.unit_stride});
    }
    specs_.push_back(std::move(spec));
  }

 private:
  const std::string prefix_;
  const int32_t layer_;
  std::vector<WeightSpec>& specs_;
};

std::vector<Projection> QkvProjections(const ModelTensors& tensors, const ModelConfig& model) {
  const int64_t hidden = model.hidden_size, head_dim = model.head_dim;
  const int64_t q_rows = model.num_heads * head_dim, kv_rows = model.num_kv_heads * head_dim;
  std::vector<Projection> qkv = {
      {.name = tensors.q, .rows = q_rows, .cols = hidden, .unit_rows = head_dim},
      {.name = tensors.k, .rows = kv_rows, .cols = hidden, .unit_rows = head_dim},
      {.name = tensors.v, .rows = kv_rows, .cols = hidden, .unit_rows = head_dim}};
  if (tensors.qkv.empty()) return qkv;
  int64_t first_row = 0;
  for (Projection& projection : qkv) {
    projection.name = tensors.qkv;
    projection.tensor_rows = q_rows + 2 * kv_rows;
    projection.first_row = first_row;
    if (tensors.fused_qkv == FusedQkv::kBlocks) {
      first_row += projection.rows;
    } else {
      projection.unit_stride = 3 * head_dim;
      first_row += head_dim;
    }
  }
  return qkv;
}

void AddAttention(const ModelTensors& tensors, const ModelConfig& model, SpecAdder& add) {
  const int64_t hidden = model.hidden_size, head_dim = model.head_dim;
  const int64_t q_rows = model.num_heads * head_dim, kv_rows = model.num_kv_heads * head_dim;
  add.Norm(WeightRole::kInputNorm, tensors.input_norm, hidden);
  if (model.norm_bias) add.NormBias(WeightRole::kInputNormBias, tensors.input_norm, hidden);
  const std::vector<Projection> qkv = QkvProjections(tensors, model);
  add.Matrix(WeightRole::kQkv, qkv, tensors.transposed);
  if (model.qkv_bias) add.Bias(WeightRole::kQkvBias, qkv);
  add.Norm(WeightRole::kQNorm, tensors.q_norm, tensors.head_norms ? head_dim : q_rows);
  add.Norm(WeightRole::kKNorm, tensors.k_norm, tensors.head_norms ? head_dim : kv_rows);
  const std::vector<Projection> out = {{.name = tensors.attention_out,
                                        .rows = hidden,
                                        .cols = q_rows,
                                        .split = WeightSplit::kColumns}};
  add.Matrix(WeightRole::kAttentionOut, out, tensors.transposed);
  if (model.o_bias) add.Bias(WeightRole::kAttentionOutBias, out);
  add.Norm(WeightRole::kAttentionOutNorm, tensors.attention_out_norm, hidden);
}

void AddMlp(const ModelTensors& tensors, const ModelConfig& model, SpecAdder& add) {
  const int64_t hidden = model.hidden_size, inner = model.intermediate_size;
  std::vector<Projection> gate_up;
  if (!tensors.gate.empty()) {
    gate_up.push_back({.name = tensors.gate, .rows = inner, .cols = hidden});
  }
  gate_up.push_back({.name = tensors.up, .rows = inner, .cols = hidden});
  if (!tensors.gate_up.empty()) {
    for (size_t i = 0; i < gate_up.size(); ++i) {
      gate_up[i].name = tensors.gate_up;
      gate_up[i].tensor_rows = 2 * inner;
      gate_up[i].first_row = static_cast<int64_t>(i) * inner;
    }
  }
  add.Matrix(WeightRole::kGateUp, gate_up, tensors.transposed);
  if (model.mlp_bias) add.Bias(WeightRole::kGateUpBias, gate_up);
  const std::vector<Projection> down = {
      {.name = tensors.down, .rows = hidden, .cols = inner, .split = WeightSplit::kColumns}};
  add.Matrix(WeightRole::kDown, down, tensors.transposed);
  if (model.mlp_bias) add.Bias(WeightRole::kDownBias, down);
}

void AddExperts(const ModelTensors& tensors, const ModelConfig& model, SpecAdder& add) {
  const ExpertConfig& experts = *model.experts;
  const int64_t hidden = model.hidden_size, inner = experts.intermediate_size;
  add.Matrix(WeightRole::kRouter,
             {{.name = tensors.router,
               .rows = experts.num_experts,
               .cols = hidden,
               .split = WeightSplit::kWhole}},
             false);
  // Names must outlive the projections that point to them.
  std::vector<std::string> names;
  names.reserve(static_cast<size_t>(3 * experts.num_experts));
  std::vector<Projection> gate_up, down;
  for (int32_t e = 0; e < experts.num_experts; ++e) {
    const std::string prefix = absl::StrCat(tensors.experts, e, ".");
    for (const absl::string_view name : {tensors.expert_gate, tensors.expert_up}) {
      names.push_back(absl::StrCat(prefix, name));
      gate_up.push_back({.name = names.back(), .rows = inner, .cols = hidden});
    }
    names.push_back(absl::StrCat(prefix, tensors.expert_down));
    down.push_back(
        {.name = names.back(), .rows = hidden, .cols = inner, .split = WeightSplit::kColumns});
  }
  add.Matrix(WeightRole::kExpertGateUp, gate_up, false);
  add.Matrix(WeightRole::kExpertDown, down, false);
}

WeightSpec VocabMatrix(WeightRole role, std::string tensor, const ModelConfig& model) {
  return {.role = role,
          .parts = {{.tensor = std::move(tensor),
                     .rows = model.vocab_size,
                     .cols = model.hidden_size,
                     .split = WeightSplit::kPaddedRows}}};
}

}  // namespace

std::string ModelTensors::embedding_tensor() const {
  return absl::StrCat(prefix, embedding, ".weight");
}

std::string ModelTensors::head_tensor() const { return absl::StrCat(head, ".weight"); }

std::vector<WeightSpec> MakeWeightSpecs(const ModelTensors& tensors, const ModelConfig& model) {
  const int64_t hidden = model.hidden_size;
  std::vector<WeightSpec> specs;
  SpecAdder outer(std::string(tensors.prefix), kNoLayer, specs);
  specs.push_back(VocabMatrix(WeightRole::kEmbedding, tensors.embedding_tensor(), model));
  if (!tensors.position_embedding.empty()) {
    outer.Matrix(WeightRole::kPositionEmbedding,
                 {{.name = tensors.position_embedding,
                   .rows = model.max_position_embeddings,
                   .cols = hidden,
                   .split = WeightSplit::kWhole}},
                 false);
  }
  outer.Norm(WeightRole::kEmbeddingNorm, tensors.embedding_norm, hidden);
  if (model.norm_bias) {
    outer.NormBias(WeightRole::kEmbeddingNormBias, tensors.embedding_norm, hidden);
  }
  for (int32_t layer = 0; layer < model.num_layers; ++layer) {
    SpecAdder add(absl::StrCat(tensors.prefix, tensors.layers, layer, "."), layer, specs);
    AddAttention(tensors, model, add);
    add.Norm(WeightRole::kPostAttentionNorm, tensors.mlp_norm, hidden);
    if (model.norm_bias) add.NormBias(WeightRole::kPostAttentionNormBias, tensors.mlp_norm, hidden);
    if (model.HasExperts(layer)) {
      AddExperts(tensors, model, add);
    } else {
      AddMlp(tensors, model, add);
    }
    add.Norm(WeightRole::kMlpOutNorm, tensors.mlp_out_norm, hidden);
  }
  outer.Norm(WeightRole::kFinalNorm, tensors.final_norm, hidden);
  if (model.norm_bias) outer.NormBias(WeightRole::kFinalNormBias, tensors.final_norm, hidden);
  if (!model.tie_word_embeddings) {
    specs.push_back(VocabMatrix(WeightRole::kLmHead, tensors.head_tensor(), model));
  }
  return specs;
}

}  // namespace pagoda::engine
