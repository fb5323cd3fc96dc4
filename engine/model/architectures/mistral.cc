#include "engine/model/architectures/mistral.h"

#include <string>

#include "engine/model/architectures/llama.h"

namespace pagoda::engine {
namespace {

// One kind of attention for all layers; newer checkpoints also list it by layer.
void CheckLayerTypes(ConfigFields& fields, const ModelConfig& config) {
  const char* kind = config.sliding_window ? "sliding_attention" : "full_attention";
  for (const std::string& type : fields.Strings("layer_types")) {
    if (type != kind) {
      fields.Refuse("layer_types",
                    config.sliding_window
                        ? "\"sliding_attention\" for every layer, as sliding_window "
                          "is set"
                        : "\"full_attention\" for every layer, as sliding_window is "
                          "null");
    }
  }
}

void ReadConfig(ConfigFields& fields, ModelConfig& config) {
  config.num_kv_heads = fields.RequiredInt("num_key_value_heads", 1, config.num_heads);
  config.sliding_window = fields.OptionalInt("sliding_window", 1, 1 << 30);
  CheckLayerTypes(fields, config);
  fields.RequireNeutral("attention_bias", false);
  fields.RequireNeutral("mlp_bias", false);
}

}  // namespace

const Architecture kMistralForCausalLM = {
    .name = "MistralForCausalLM",
    .read_config = ReadConfig,
    // The window is a setting of attention; all else is Llama's.
    .weights = LlamaWeights,
    .run_layers = RunLlamaLayers,
};

}  // namespace pagoda::engine
