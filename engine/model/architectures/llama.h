#pragma once

#include "engine/model/architecture.h"

namespace pagoda::engine {

extern const Architecture kLlamaForCausalLM;

// Parts that other architectures share: layers of attention and a gated MLP, each behind a norm.
std::vector<WeightSpec> LlamaWeights(const ModelConfig& config);
absl::Status RunLlamaLayers(const ForwardPass& pass);

}  // namespace pagoda::engine
