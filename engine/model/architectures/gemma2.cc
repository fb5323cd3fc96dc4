#include "engine/model/architectures/gemma2.h"

#include <cmath>
#include <utility>
#include <vector>

#include "engine/model/config_readers.h"

namespace pagoda::engine {
namespace {

void ReadGemma2Config(ConfigFields& fields, ModelConfig& config) {
  ReadShape(fields, {.default_head_dim = 256}, config);
  ReadGemmaFields(fields, config);
  ReadRope(fields, {}, config);
  config.sliding_window = fields.OptionalInt("sliding_window", 1, 1 << 30).value_or(4096);
  // Where layer_types is absent, the first of each two layers has the window.
  std::vector<bool> sliding;
  for (int32_t i = 0; i < config.num_layers; ++i) sliding.push_back(i % 2 == 0);
  ReadSlidingLayers(fields, std::move(sliding), config);
}

}  // namespace

void ReadGemmaFields(ConfigFields& fields, ModelConfig& config) {
  ReadNormEps(fields, "rms_norm_eps", config);
  config.norm_weight_offset = 1.0f;
  ReadTiedEmbeddings(fields, true, config);
  ReadActivation(fields, "hidden_activation", "gelu_pytorch_tanh", config);
  // A field that nothing reads; where it is there, it must not say otherwise.
  fields.RequireNeutral("hidden_act", "gelu_pytorch_tanh");
  ReadKvHeads(fields, /*required=*/true, config);
  ReadAttentionBias(fields, config);
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  const double scalar = fields.OptionalNumber("query_pre_attn_scalar", 1e-3, 1e6).value_or(256.0);
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar));
  config.attention_soft_cap = ReadSoftCap(fields, "attn_logit_softcapping");
  config.logit_soft_cap = ReadSoftCap(fields, "final_logit_softcapping");
  // How the library stores keys and values.
  fields.Ignore({"cache_implementation"});
}

const Architecture kGemma2ForCausalLM = {
    .name = "Gemma2ForCausalLM",
    .read_config = ReadGemma2Config,
    .tensors = {.attention_out_norm = "post_attention_layernorm",
                .mlp_norm = "pre_feedforward_layernorm",
                .mlp_out_norm = "post_feedforward_layernorm"},
    .run_layers = RunGatedLayers,
};

}  // namespace pagoda::engine
