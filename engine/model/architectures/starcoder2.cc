#include "engine/model/architectures/starcoder2.h"

#include "engine/model/config_readers.h"

namespace pagoda::engine {
namespace {

void ReadStarcoder2Config(ConfigFields& fields, ModelConfig& config) {
  ReadShape(fields, {}, config);
  ReadNormEps(fields, "norm_epsilon", config);
  config.norm = NormKind::kLayer;
  config.norm_bias = true;
  ReadTiedEmbeddings(fields, true, config);
  ReadActivation(fields, "hidden_act", "gelu_pytorch_tanh", config);
  ReadRope(fields, {}, config);
  ReadKvHeads(fields, /*required=*/false, config);
  ReadUniformWindow(fields, config);
  const bool use_bias = fields.OptionalBool("use_bias").value_or(true);
  config.qkv_bias = config.o_bias = config.mlp_bias = use_bias;
  fields.RequireNeutral("norm_type", "layer_norm");
  fields.RequireNeutral("mlp_type", "default");
  fields.Ignore({"embedding_dropout", "residual_dropout"});
}

}  // namespace

const Architecture kStarcoder2ForCausalLM = {
    .name = "Starcoder2ForCausalLM",
    .read_config = ReadStarcoder2Config,
    .tensors = {.gate = "", .up = "mlp.c_fc", .down = "mlp.c_proj"},
    .run_layers = RunPlainLayers,
};

}  // namespace pagoda::engine
