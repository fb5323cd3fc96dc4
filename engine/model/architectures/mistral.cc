#include "engine/model/architectures/mistral.h"

#include "engine/model/config_readers.h"

namespace pagoda::engine {
namespace {

void ReadMistralConfig(ConfigFields& fields, ModelConfig& config) {
  ReadLlamaFields(fields, config);
  ReadKvHeads(fields, /*required=*/true, config);
  ReadUniformWindow(fields, config);
  fields.RequireNeutral("attention_bias", false);
  fields.RequireNeutral("mlp_bias", false);
}

}  // namespace

const Architecture kMistralForCausalLM = {
    .name = "MistralForCausalLM",
    .read_config = ReadMistralConfig,
    .run_layers = RunGatedLayers,
};

}  // namespace pagoda::engine
