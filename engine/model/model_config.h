#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "engine/ids.h"
#include "kernels/base/dtype.h"
#include "kernels/ops/activation_kind.h"

namespace pagoda::engine {

// Rotary embedding, as config.json's rope_theta / rope_scaling / rope_parameters say in any of
// their spellings.
struct RopeConfig {
  enum class Kind { kDefault, kLinear, kDynamic, kLlama3, kYarn, kLongRope };
  Kind kind = Kind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                           // all but default and longrope
  double low_freq_factor = 1.0;                  // llama3
  double high_freq_factor = 4.0;                 // llama3
  double beta_fast = 32.0;                       // yarn
  double beta_slow = 1.0;                        // yarn
  bool truncate = true;                          // yarn: whole dimensions bound the ramp
  double attention_factor = 1.0;                 // yarn, longrope: of cosines and sines
  int32_t original_max_position_embeddings = 0;  // all but default and linear
  std::vector<double> short_factors;             // longrope, by pair
  std::vector<double> long_factors;              // longrope
  double rotary_fraction = 1.0;                  // of head_dim that is rotated

  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

enum class NormKind : uint8_t { kRms, kLayer };

// A mixture of experts in place of the MLP.
struct ExpertConfig {
  int32_t num_experts = 0;
  int32_t experts_per_token = 0;
  int32_t intermediate_size = 0;
  bool normalise = true;           // the weights of a token's experts add up to 1
  std::vector<bool> dense_layers;  // layers with an MLP; empty: none
};

// What config.json says, validated. A field that changes the arithmetic and is not understood is an
// error naming it. Neutral values change nothing.
struct ModelConfig {
  std::string architecture;  // architectures[0]
  int32_t num_layers = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocab_size = 0;
  int32_t max_position_embeddings = 0;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;

  NormKind norm = NormKind::kRms;
  float norm_eps = 1e-5f;
  float norm_weight_offset = 0.0f;  // 1: the checkpoint holds weight - 1
  bool norm_bias = false;           // layer norms
  kernels::Activation activation = kernels::Activation::kSilu;

  float embedding_scale = 1.0f;
  float residual_scale = 1.0f;  // of what a block adds to the residual stream
  float logit_scale = 1.0f;
  float logit_soft_cap = 0.0f;  // 0: off
  float attention_soft_cap = 0.0f;
  absl::optional<float> attention_scale;  // of q . k; absent: 1 / sqrt(head_dim)

  absl::optional<int32_t> sliding_window;
  std::vector<bool> sliding_layers;  // layers with the window; empty: all
  RopeConfig rope;
  absl::optional<RopeConfig> sliding_rope;  // of layers with the window; absent: rope
  bool has_rope = true;
  absl::optional<float> alibi_bias_max;  // ALiBi instead of a rotation

  absl::optional<ExpertConfig> experts;

  DType dtype = DType::kBFloat16;  // of the checkpoint
  std::vector<TokenId> eos_token_ids;
  absl::optional<TokenId> bos_token_id;

  bool HasWindow(int32_t layer) const {
    return sliding_window.has_value() &&
           (sliding_layers.empty() || sliding_layers[static_cast<size_t>(layer)]);
  }
  bool HasExperts(int32_t layer) const {
    return experts.has_value() &&
           (experts->dense_layers.empty() || !experts->dense_layers[static_cast<size_t>(layer)]);
  }
  int32_t rotary_dim() const {
    return has_rope ? static_cast<int32_t>(head_dim * rope.rotary_fraction) : 0;
  }
};

// Reads <model_dir>/config.json. NOT_FOUND or INVALID_ARGUMENT naming file, field, value and what
// was expected.
absl::StatusOr<ModelConfig> LoadModelConfig(absl::string_view model_dir);

// Sampling defaults and EOS ids of generation_config.json; everything absent when there is no such
// file.
struct GenerationConfig {
  absl::optional<bool> do_sample;  // false: temperature 0 unless the request says otherwise
  absl::optional<float> temperature, top_p, min_p, typical_p, repetition_penalty;
  absl::optional<int32_t> top_k;
  std::vector<TokenId> eos_token_ids;
};

absl::StatusOr<GenerationConfig> LoadGenerationConfig(absl::string_view model_dir);

// The type that weights and KV cache get: `dtype` ("auto" or a name of dtype.h) for a model on a
// backend. "auto" is the checkpoint's type; on cpu, which has no float16, float32 instead of that.
// INVALID_ARGUMENT naming an unknown one.
absl::StatusOr<DType> ResolveDType(absl::string_view dtype,
                                   const ModelConfig& config,
                                   absl::string_view device);

// Bytes of weights, by dtype, that the model takes on its device (each matrix once); a pure
// function. REQUIRES, here and below: config.architecture is one that is known.
uint64_t WeightBytes(const ModelConfig& config, DType dtype);
// Number of parameters; tied embeddings count once.
uint64_t NumParameters(const ModelConfig& config);
// Bytes of one token's K and V over all layers.
uint64_t KvBytesPerToken(const ModelConfig& config, DType kv_dtype);

}  // namespace pagoda::engine
