#include "engine/model/architectures/llama.h"

namespace pagoda::engine {
namespace {

void ReadConfig(ConfigFields& fields, ModelConfig& config) {
  // Llama 1 and 2 checkpoints leave the field out: every query head has its own keys.
  config.num_kv_heads =
      fields.OptionalInt("num_key_value_heads", 1, config.num_heads).value_or(config.num_heads);
  const bool attention_bias = fields.OptionalBool("attention_bias").value_or(false);
  config.qkv_bias = attention_bias;
  config.o_bias = attention_bias;
  config.mlp_bias = fields.OptionalBool("mlp_bias").value_or(false);
}

}  // namespace

const Architecture kLlamaForCausalLM = {
    .name = "LlamaForCausalLM",
    .read_config = ReadConfig,
};

}  // namespace pagoda::engine
