#include "engine/model/architectures/qwen2.h"

#include "engine/model/config_readers.h"

namespace pagoda::engine {
namespace {

void ReadQwen2Config(ConfigFields& fields, ModelConfig& config) {
  ReadLlamaFields(fields, config);
  ReadKvHeads(fields, /*required=*/false, config);
  ReadQwenWindow(fields, config);
  // Not a field: every Qwen2 has them.
  config.qkv_bias = true;
}

}  // namespace

const Architecture kQwen2ForCausalLM = {
    .name = "Qwen2ForCausalLM",
    .read_config = ReadQwen2Config,
    .run_layers = RunGatedLayers,
};

}  // namespace pagoda::engine
