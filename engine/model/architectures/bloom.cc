#include "engine/model/architectures/bloom.h"

#include "engine/model/config_readers.h"

namespace pagoda::engine {
namespace {

// How training was done, and how attention's sums are taken.
constexpr absl::string_view kBloomHarmlessFields[] = {
    "attention_softmax_in_fp32",
    "bias_dropout_fusion",
    "masked_softmax_fusion",
    "offset_alibi",
    "skip_bias_add",
    "skip_bias_add_qkv",
    "slow_but_exact",
    "unk_token_id",
};

void ReadBloomConfig(ConfigFields& fields, ModelConfig& config) {
  ReadShape(fields,
            {.num_layers = {"n_layer", "num_hidden_layers"},
             .hidden_size = {"hidden_size", "n_embed"},
             .intermediate_size = {"n_inner"},
             .num_heads = {"n_head", "num_attention_heads"},
             .positions = {"seq_length"},
             .default_mlp_ratio = 4,
             .default_positions = 2048},  // the length it was trained with
            config);
  ReadNormEps(fields, "layer_norm_epsilon", config);
  config.norm = NormKind::kLayer;
  config.norm_bias = true;
  config.qkv_bias = config.o_bias = config.mlp_bias = true;
  config.has_rope = false;
  config.alibi_bias_max = 8.0f;
  config.activation = kernels::Activation::kGeluTanh;
  ReadTiedEmbeddings(fields, true, config);
  fields.RequireNeutral("apply_residual_connection_post_layernorm", false);
  fields.Ignore(kBloomHarmlessFields);
}

}  // namespace

const Architecture kBloomForCausalLM = {
    .name = "BloomForCausalLM",
    .read_config = ReadBloomConfig,
    .tensors = {.prefix = "transformer.",
                .prefix_is_optional = true,
                .embedding = "word_embeddings",
                .embedding_norm = "word_embeddings_layernorm",
                .layers = "h.",
                .final_norm = "ln_f",
                .qkv = "self_attention.query_key_value",
                .fused_qkv = FusedQkv::kByHead,
                .attention_out = "self_attention.dense",
                .gate = "",
                .up = "mlp.dense_h_to_4h",
                .down = "mlp.dense_4h_to_h"},
    .run_layers = RunPlainLayers,
};

}  // namespace pagoda::engine
