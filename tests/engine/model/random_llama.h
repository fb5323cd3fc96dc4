#pragma once

#include "tests/fixtures/llama_files.h"
#include "tests/fixtures/model_files.h"

namespace pagoda::engine {

// A small LlamaForCausalLM with random float32 weights, norms included, and an untied head.
inline fixtures::ModelFiles RandomLlama(uint64_t seed = 1,
                                        int64_t vocab = 96,
                                        int64_t intermediate = 80) {
  const fixtures::LlamaShape shape = {.num_layers = 2,
                                      .hidden = 48,
                                      .intermediate = intermediate,
                                      .num_heads = 4,
                                      .num_kv_heads = 2,
                                      .head_dim = 16,
                                      .vocab = vocab,
                                      .max_positions = 256};
  fixtures::ModelFiles model;
  model.config = fixtures::LlamaConfig(shape, DType::kFloat32);
  model.tensors = fixtures::RandomLlamaTensors(shape, seed);
  // Norms that are not 1 show whether each is used where it belongs.
  fixtures::Random random(seed + 1);
  for (fixtures::Tensor& tensor : model.tensors) {
    if (tensor.shape.size() != 1) continue;
    const std::vector<float> noise = random.Normal(tensor.shape[0], 0.2);
    for (size_t i = 0; i < noise.size(); ++i) tensor.values[i] += noise[i];
  }
  return model;
}

}  // namespace pagoda::engine
