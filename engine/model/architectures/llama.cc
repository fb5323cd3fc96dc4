#include "engine/model/architectures/llama.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

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

std::vector<WeightSpec> LlamaWeights(const ModelConfig& config) {
  std::vector<WeightSpec> specs;
  AddEmbeddingWeights(config, specs);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    AddAttentionWeights(config, layer, prefix, specs);
    AddGatedMlpWeights(config, layer, prefix, specs);
  }
  AddHeadWeights(config, specs);
  return specs;
}

absl::Status RunLlamaLayers(const ForwardPass& pass) {
  PAGODA_RETURN_IF_ERROR(EmbedTokens(pass));
  for (int32_t layer = 0; layer < pass.model->num_layers; ++layer) {
    PAGODA_RETURN_IF_ERROR(AttentionBlock(pass, layer));
    PAGODA_RETURN_IF_ERROR(GatedMlpBlock(pass, layer));
  }
  return absl::OkStatus();
}

const Architecture kLlamaForCausalLM = {
    .name = "LlamaForCausalLM",
    .read_config = ReadConfig,
    .weights = LlamaWeights,
    .run_layers = RunLlamaLayers,
};

}  // namespace pagoda::engine
