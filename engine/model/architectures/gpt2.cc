#include "engine/model/architectures/gpt2.h"

#include "engine/model/config_readers.h"

namespace pagoda::engine {
namespace {

// Heads of other models than this one, and the order in which attention rounds.
constexpr absl::string_view kGpt2HarmlessFields[] = {
    "reorder_and_upcast_attn",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "n_ctx",  // n_positions under an older name
};

void ReadGpt2Config(ConfigFields& fields, ModelConfig& config) {
  ReadShape(fields,
            {.num_layers = {"n_layer", "num_hidden_layers"},
             .hidden_size = {"n_embd", "hidden_size"},
             .intermediate_size = {"n_inner"},
             .num_heads = {"n_head", "num_attention_heads"},
             .positions = {"n_positions", "max_position_embeddings"},
             .default_mlp_ratio = 4},
            config);
  ReadNormEps(fields, "layer_norm_epsilon", config);
  config.norm = NormKind::kLayer;
  config.norm_bias = true;
  config.qkv_bias = config.o_bias = config.mlp_bias = true;
  config.has_rope = false;
  ReadTiedEmbeddings(fields, true, config);
  ReadActivation(fields, "activation_function", "gelu_new", config);
  fields.RequireNeutral("scale_attn_weights", true);
  fields.RequireNeutral("scale_attn_by_inverse_layer_idx", false);
  fields.Ignore(kGpt2HarmlessFields);
}

}  // namespace

const Architecture kGpt2LMHeadModel = {
    .name = "GPT2LMHeadModel",
    .read_config = ReadGpt2Config,
    .tensors = {.prefix = "transformer.",
                .prefix_is_optional = true,
                .embedding = "wte",
                .position_embedding = "wpe",
                .layers = "h.",
                .final_norm = "ln_f",
                .input_norm = "ln_1",
                .qkv = "attn.c_attn",
                .attention_out = "attn.c_proj",
                .mlp_norm = "ln_2",
                .gate = "",
                .up = "mlp.c_fc",
                .down = "mlp.c_proj",
                .transposed = true},
    .run_layers = RunPlainLayers,
};

}  // namespace pagoda::engine
