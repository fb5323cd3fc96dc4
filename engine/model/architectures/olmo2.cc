#include "engine/model/architectures/olmo2.h"

#include "engine/model/config_readers.h"

namespace pagoda::engine {
namespace {

void ReadOlmo2Config(ConfigFields& fields, ModelConfig& config) {
  ReadLlamaFields(fields, config);
  ReadKvHeads(fields, /*required=*/false, config);
  ReadAttentionBias(fields, config);
}

}  // namespace

// Norms are behind attention and MLP, not before them; those of q and k span all heads.
const Architecture kOlmo2ForCausalLM = {
    .name = "Olmo2ForCausalLM",
    .read_config = ReadOlmo2Config,
    .tensors = {.input_norm = "",
                .q_norm = "self_attn.q_norm",
                .k_norm = "self_attn.k_norm",
                .head_norms = false,
                .attention_out_norm = "post_attention_layernorm",
                .mlp_norm = "",
                .mlp_out_norm = "post_feedforward_layernorm"},
    .run_layers = RunGatedLayers,
};

}  // namespace pagoda::engine
