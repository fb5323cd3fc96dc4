#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "engine/ids.h"
#include "kernels/base/dtype.h"

namespace pagoda::engine {

// Rotary embedding, as config.json's rope_theta / rope_scaling / rope_parameters say in any of
// their spellings.
struct RopeConfig {
  enum class Kind { kDefault, kLinear, kLlama3 };
  Kind kind = Kind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                           // linear, llama3
  double low_freq_factor = 1.0;                  // llama3
  double high_freq_factor = 4.0;                 // llama3
  int32_t original_max_position_embeddings = 0;  // llama3
};

// What config.json says, validated. A field that changes the arithmetic and is not understood is an
// error naming it.
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
  float rms_norm_eps = 1e-5f;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  absl::optional<int32_t> sliding_window;
  RopeConfig rope;
  DType dtype = DType::kBFloat16;  // of the checkpoint
  std::vector<TokenId> eos_token_ids;
  absl::optional<TokenId> bos_token_id;
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
// function.
uint64_t WeightBytes(const ModelConfig& config, DType dtype);
// Number of parameters; tied embeddings count once.
uint64_t NumParameters(const ModelConfig& config);
// Bytes of one token's K and V over all layers.
uint64_t KvBytesPerToken(const ModelConfig& config, DType kv_dtype);

}  // namespace pagoda::engine
