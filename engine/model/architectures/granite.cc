#include "engine/model/architectures/granite.h"

#include "engine/model/config_readers.h"

namespace pagoda::engine {
namespace {

void ReadGraniteConfig(ConfigFields& fields, ModelConfig& config) {
  ReadLlamaFields(fields, config);
  ReadKvHeads(fields, /*required=*/false, config);
  ReadAttentionBias(fields, config);
  config.mlp_bias = fields.OptionalBool("mlp_bias").value_or(false);
  config.embedding_scale = ReadScale(fields, "embedding_multiplier");
  config.attention_scale = ReadScale(fields, "attention_multiplier");
  config.residual_scale = ReadScale(fields, "residual_multiplier");
  const float logits_scaling = ReadScale(fields, "logits_scaling");
  if (logits_scaling == 0.0f) fields.Refuse("logits_scaling", "a number other than 0");
  config.logit_scale = 1.0f / logits_scaling;
}

}  // namespace

const Architecture kGraniteForCausalLM = {
    .name = "GraniteForCausalLM",
    .read_config = ReadGraniteConfig,
    .run_layers = RunGatedLayers,
};

}  // namespace pagoda::engine
