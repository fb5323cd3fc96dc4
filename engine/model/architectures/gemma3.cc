#include "engine/model/architectures/gemma3.h"

#include <vector>

#include "engine/model/architectures/gemma2.h"
#include "engine/model/config_readers.h"
#include "engine/model/rope_config.h"

namespace pagoda::engine {
namespace {

constexpr double kGlobalTheta = 1e6;
constexpr double kLocalTheta = 1e4;
constexpr absl::string_view kUnknownRope =
    "Pagoda does not know this kind of layer or key of the rotary embedding";

// rope_parameters holds an object for each kind of layer (transformers 5), or rope_theta and
// rope_scaling are those of layers without the window and rope_local_base_freq that of the others.
void ReadRopes(ConfigFields& fields, ModelConfig& config) {
  const RopeContext context = {.default_theta = kGlobalTheta,
                               .max_position_embeddings = config.max_position_embeddings,
                               .head_dim = config.head_dim};
  RopeConfig local;
  local.theta = fields.OptionalNumber("rope_local_base_freq", 1.0, 1e12).value_or(kLocalTheta);
  ConfigFields parameters = fields.Object("rope_parameters");
  if (!parameters.Has("full_attention") && !parameters.Has("sliding_attention")) {
    config.rope = ReadRopeConfig(fields, context);
    config.sliding_rope = local;
    return;
  }
  const auto read = [&](absl::string_view kind) {
    ConfigFields object = parameters.Object(kind);
    const RopeConfig rope = ReadRopeObject(object, absl::nullopt, context);
    parameters.Fail(object.Finish(kUnknownRope));
    return rope;
  };
  config.rope = read("full_attention");
  config.sliding_rope = read("sliding_attention");
  fields.Fail(parameters.Finish(kUnknownRope));
}

// Where layer_types is absent, every n-th layer is without the window.
std::vector<bool> DefaultSlidingLayers(ConfigFields& fields, const ModelConfig& config) {
  const int32_t pattern =
      fields
          .OptionalInt(
              fields.Pick({"sliding_window_pattern", "_sliding_window_pattern"}), 1, 1 << 16)
          .value_or(6);
  std::vector<bool> sliding;
  for (int32_t i = 0; i < config.num_layers; ++i) sliding.push_back((i + 1) % pattern != 0);
  return sliding;
}

void ReadGemma3Config(ConfigFields& fields, ModelConfig& config) {
  ReadShape(fields, {.default_head_dim = 256}, config);
  ReadGemmaFields(fields, config);
  ReadRopes(fields, config);
  config.sliding_window = fields.OptionalInt("sliding_window", 1, 1 << 30).value_or(4096);
  ReadSlidingLayers(fields, DefaultSlidingLayers(fields, config), config);
}

}  // namespace

const Architecture kGemma3ForCausalLM = {
    .name = "Gemma3ForCausalLM",
    .read_config = ReadGemma3Config,
    .tensors = {.q_norm = "self_attn.q_norm",
                .k_norm = "self_attn.k_norm",
                .attention_out_norm = "post_attention_layernorm",
                .mlp_norm = "pre_feedforward_layernorm",
                .mlp_out_norm = "post_feedforward_layernorm"},
    .run_layers = RunGatedLayers,
};

}  // namespace pagoda::engine
