// Types and sizes that follow from a ModelConfig: pure functions of model_config.h.
#include "engine/model/model_config.h"

namespace pagoda::engine {
namespace {

struct ParameterCounts {
  uint64_t matrices = 0;  // stored in the model's dtype
  uint64_t vectors = 0;   // norms and biases, float32 on the device
};

ParameterCounts CountParameters(const ModelConfig& config) {
  const uint64_t hidden = static_cast<uint64_t>(config.hidden_size);
  const uint64_t intermediate = static_cast<uint64_t>(config.intermediate_size);
  const uint64_t q_width = static_cast<uint64_t>(config.num_heads) * config.head_dim;
  const uint64_t qkv_width =
      q_width + 2 * static_cast<uint64_t>(config.num_kv_heads) * config.head_dim;
  const uint64_t vocab_matrix = static_cast<uint64_t>(config.vocab_size) * hidden;

  const uint64_t layer_matrices = hidden * (qkv_width + q_width + 3 * intermediate);
  const uint64_t layer_vectors = 2 * hidden + (config.qkv_bias ? qkv_width : 0) +
                                 (config.o_bias ? hidden : 0) +
                                 (config.mlp_bias ? 2 * intermediate + hidden : 0);
  const uint64_t layers = static_cast<uint64_t>(config.num_layers);
  return {.matrices = layers * layer_matrices + (config.tie_word_embeddings ? 1 : 2) * vocab_matrix,
          .vectors = layers * layer_vectors + hidden};
}

}  // namespace

absl::StatusOr<DType> ResolveDType(absl::string_view dtype,
                                   const ModelConfig& config,
                                   absl::string_view device) {
  if (dtype == "auto") {
    return config.dtype == DType::kFloat16 && device == "cpu" ? DType::kFloat32 : config.dtype;
  }
  return ParseDType(dtype);
}

uint64_t WeightBytes(const ModelConfig& config, DType dtype) {
  const ParameterCounts counts = CountParameters(config);
  return counts.matrices * DTypeBytes(dtype) + counts.vectors * sizeof(float);
}

uint64_t NumParameters(const ModelConfig& config) {
  const ParameterCounts counts = CountParameters(config);
  return counts.matrices + counts.vectors;
}

uint64_t KvBytesPerToken(const ModelConfig& config, DType kv_dtype) {
  return 2 * static_cast<uint64_t>(config.num_layers) * config.num_kv_heads * config.head_dim *
         DTypeBytes(kv_dtype);
}

}  // namespace pagoda::engine
