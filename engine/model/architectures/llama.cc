#include "engine/model/architectures/llama.h"

#include "engine/model/config_readers.h"

namespace pagoda::engine {
namespace {

void ReadLlamaConfig(ConfigFields& fields, ModelConfig& config) {
  ReadLlamaFields(fields, config);
  // Llama 1 and 2 checkpoints leave the field out: every query head has its own keys.
  ReadKvHeads(fields, /*required=*/false, config);
  ReadAttentionBias(fields, config);
  config.mlp_bias = fields.OptionalBool("mlp_bias").value_or(false);
}

}  // namespace

const Architecture kLlamaForCausalLM = {
    .name = "LlamaForCausalLM",
    .read_config = ReadLlamaConfig,
    .run_layers = RunGatedLayers,
};

}  // namespace pagoda::engine
