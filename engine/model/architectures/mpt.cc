#include "engine/model/architectures/mpt.h"

#include <string>

#include "engine/model/config_readers.h"

namespace pagoda::engine {
namespace {

// The checkpoints bring their own code along, which transformers has too. learned_pos_emb is read
// by nobody where there is ALiBi.
constexpr absl::string_view kMptHarmlessFields[] = {"auto_map",
                                                    "emb_pdrop",
                                                    "embedding_fraction",
                                                    "init_config",
                                                    "init_device",
                                                    "learned_pos_emb",
                                                    "resid_pdrop",
                                                    "tokenizer_name",
                                                    "verbose"};

constexpr absl::string_view kUnknownKey =
    "Pagoda does not know this key of attention, which may change every result";

void ReadAttention(ConfigFields& fields, ModelConfig& config) {
  ConfigFields attention = fields.Object("attn_config");
  if (!attention.OptionalBool("alibi").value_or(true)) {
    attention.Refuse("alibi", "true (nothing else is supported)");
  }
  config.alibi_bias_max =
      static_cast<float>(attention.OptionalInt("alibi_bias_max", 1, 1 << 16).value_or(8));
  if (const auto scale = attention.OptionalNumber("softmax_scale", 1e-9, 1e9)) {
    config.attention_scale = static_cast<float>(*scale);
  }
  attention.RequireNeutral("attn_type", "multihead_attention");
  attention.RequireNeutral("clip_qkv", nullptr);
  attention.RequireNeutral("qk_ln", false);
  attention.RequireNeutral("prefix_lm", false);
  attention.RequireNeutral("attn_uses_sequence_id", false);
  attention.Ignore({"attn_impl", "attn_pdrop"});
  // The library writes this object with every field that it writes outside.
  IgnoreHarmlessFields(attention);
  attention.Ignore({"chunk_size_feed_forward", "dtype", "is_encoder_decoder", "torch_dtype"});
  fields.Fail(attention.Finish(kUnknownKey));
}

void ReadMptConfig(ConfigFields& fields, ModelConfig& config) {
  ReadShape(fields,
            {.num_layers = {"n_layers", "num_hidden_layers"},
             .hidden_size = {"d_model", "hidden_size"},
             .num_heads = {"n_heads", "num_attention_heads"},
             .positions = {"max_seq_len"},
             .default_mlp_ratio = fields.OptionalInt("expansion_ratio", 1, 1 << 10).value_or(4),
             .default_positions = 2048},
            config);
  config.norm_eps =
      static_cast<float>(fields.OptionalNumber("layer_norm_epsilon", 0.0, 1.0).value_or(1e-5));
  config.norm = NormKind::kLayer;
  config.has_rope = false;
  config.activation = kernels::Activation::kGelu;
  ReadTiedEmbeddings(fields, true, config);
  ReadAttention(fields, config);
  fields.RequireNeutral("no_bias", true);
  fields.RequireNeutral("logit_scale", nullptr);
  const std::string norm = fields.OptionalString("norm_type").value_or("layernorm");
  if (norm != "layernorm" && norm != "low_precision_layernorm") {
    fields.Refuse("norm_type", "\"low_precision_layernorm\"");
  }
  fields.Ignore(kMptHarmlessFields);
}

constexpr ModelTensors kTensors = {.prefix = "transformer.",
                                   .embedding = "wte",
                                   .layers = "blocks.",
                                   .final_norm = "norm_f",
                                   .input_norm = "norm_1",
                                   .qkv = "attn.Wqkv",
                                   .attention_out = "attn.out_proj",
                                   .mlp_norm = "norm_2",
                                   .gate = "",
                                   .up = "ffn.up_proj",
                                   .down = "ffn.down_proj"};

}  // namespace

const Architecture kMptForCausalLM = {
    .name = "MptForCausalLM",
    .read_config = ReadMptConfig,
    .tensors = kTensors,
    .run_layers = RunPlainLayers,
};

const Architecture kMosaicMptForCausalLM = {
    .name = "MPTForCausalLM",
    .read_config = ReadMptConfig,
    .tensors = kTensors,
    .run_layers = RunPlainLayers,
};

}  // namespace pagoda::engine
