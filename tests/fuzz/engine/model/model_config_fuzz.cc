// config.json, then generation_config.json.
#include <string>
#include <vector>

#include "engine/model/model_config.h"
#include "kernels/base/log.h"
#include "tests/fuzz/fuzz_input.h"

namespace pagoda::engine {
namespace {

using fuzz::Require;

void CheckConfig(const ModelConfig& config) {
  Require(config.num_layers > 0 && config.hidden_size > 0 && config.intermediate_size > 0, "size");
  Require(config.num_heads > 0 && config.num_kv_heads > 0, "heads");
  Require(config.num_heads % config.num_kv_heads == 0, "heads that do not share evenly");
  Require(config.head_dim > 0 && config.vocab_size > 0, "size");
  Require(config.max_position_embeddings > 0, "positions");
  Require(config.norm_eps >= 0, "epsilon");
  Require(!config.sliding_window || *config.sliding_window > 0, "window");
  // Sums of what the fields can be fit their types.
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    Require(WeightBytes(config, dtype) >= NumParameters(config), "fewer bytes than parameters");
    Require(KvBytesPerToken(config, dtype) > 0, "no KV bytes");
  }
}

}  // namespace
}  // namespace pagoda::engine

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pagoda;
  static const fuzz::ScratchDir dir;
  SetLogLevel("error");
  const std::vector<std::string> parts = fuzz::SplitInput(data, size, 2);
  dir.Put("config.json", parts[0]);
  dir.Put("generation_config.json", parts[1]);
  const auto config = engine::LoadModelConfig(dir.path());
  if (config.ok()) engine::CheckConfig(*config);
  const auto generation = engine::LoadGenerationConfig(dir.path());
  if (generation.ok()) {
    fuzz::Require(generation->top_k.value_or(0) >= 0, "top_k");
    fuzz::Require(generation->temperature.value_or(0) >= 0, "temperature");
  }
  return 0;
}
