#include "engine/model/config_readers.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/rope_config.h"

namespace pagoda::engine {
namespace {

// Far above any model, and small enough that products of two of them fit 64 bits and that the
// weights of all layers can be listed in no time.
constexpr int32_t kMaxLayers = 1 << 12;
constexpr int32_t kMaxWidth = 1 << 24;
constexpr int32_t kMaxHeads = 1 << 16;
constexpr int32_t kMaxHeadDim = 1 << 12;
constexpr int32_t kMaxPositions = 1 << 30;
constexpr double kMaxScale = 1e6;

struct ActivationName {
  absl::string_view name;
  kernels::Activation activation;
};
// As transformers names them. Its gelu_new, gelu_fast and gelu_pytorch_tanh are one function,
// rounded in different places.
constexpr ActivationName kActivations[] = {
    {"silu", kernels::Activation::kSilu},
    {"swish", kernels::Activation::kSilu},
    {"gelu", kernels::Activation::kGelu},
    {"gelu_new", kernels::Activation::kGeluTanh},
    {"gelu_fast", kernels::Activation::kGeluTanh},
    {"gelu_pytorch_tanh", kernels::Activation::kGeluTanh},
};

int32_t IntOrDefault(ConfigFields& fields,
                     const FieldNames& names,
                     absl::optional<int32_t> default_value,
                     int32_t max) {
  const absl::string_view name = fields.Pick(names);
  if (!default_value || fields.Has(name)) return fields.RequiredInt(name, 1, max);
  return *default_value;
}

void ReadHeadDim(ConfigFields& fields,
                 const ShapeNames& names,
                 absl::string_view heads_name,
                 ModelConfig& config) {
  absl::optional<int32_t> head_dim = fields.OptionalInt("head_dim", 1, kMaxHeadDim);
  if (!head_dim) head_dim = names.default_head_dim;
  if (!head_dim && config.hidden_size % config.num_heads != 0) {
    fields.Refuse("head_dim",
                  absl::StrCat("an integer, as hidden_size ",
                               config.hidden_size,
                               " is no multiple of ",
                               heads_name,
                               " ",
                               config.num_heads));
  }
  config.head_dim = head_dim.value_or(config.hidden_size / config.num_heads);
  if (config.head_dim % 2 != 0) fields.Refuse("head_dim", "an even integer");
}

// True for each layer that has the window; empty where there is no such field.
std::vector<bool> ReadLayerTypes(ConfigFields& fields, const ModelConfig& config) {
  const std::vector<std::string> types = fields.Strings("layer_types");
  std::vector<bool> sliding;
  for (const std::string& type : types) {
    if (type != "sliding_attention" && type != "full_attention") {
      fields.Refuse("layer_types", "a list of \"full_attention\" and \"sliding_attention\"");
      return {};
    }
    sliding.push_back(type == "sliding_attention");
  }
  if (!types.empty() && types.size() != static_cast<size_t>(config.num_layers)) {
    fields.Refuse("layer_types",
                  absl::StrCat("one entry for each of num_hidden_layers ", config.num_layers));
    return {};
  }
  return sliding;
}

}  // namespace

void ReadShape(ConfigFields& fields, const ShapeNames& names, ModelConfig& config) {
  config.num_layers = fields.RequiredInt(fields.Pick(names.num_layers), 1, kMaxLayers);
  config.hidden_size = fields.RequiredInt(fields.Pick(names.hidden_size), 1, kMaxWidth);
  absl::optional<int32_t> default_width;
  if (names.default_mlp_ratio) {
    default_width = static_cast<int32_t>(
        std::min<int64_t>(int64_t{*names.default_mlp_ratio} * config.hidden_size, kMaxWidth));
  }
  config.intermediate_size =
      IntOrDefault(fields, names.intermediate_size, default_width, kMaxWidth);
  config.max_position_embeddings =
      IntOrDefault(fields, names.positions, names.default_positions, kMaxPositions);
  const absl::string_view heads_name = fields.Pick(names.num_heads);
  config.num_heads = fields.RequiredInt(heads_name, 1, kMaxHeads);
  config.num_kv_heads = config.num_heads;
  ReadHeadDim(fields, names, heads_name, config);
}

void ReadKvHeads(ConfigFields& fields, bool required, ModelConfig& config) {
  constexpr absl::string_view kName = "num_key_value_heads";
  config.num_kv_heads =
      required ? fields.RequiredInt(kName, 1, config.num_heads)
               : fields.OptionalInt(kName, 1, config.num_heads).value_or(config.num_heads);
}

void ReadNormEps(ConfigFields& fields, absl::string_view name, ModelConfig& config) {
  config.norm_eps = static_cast<float>(fields.RequiredNumber(name, 0.0, 1.0));
}

void ReadActivation(ConfigFields& fields,
                    absl::string_view name,
                    absl::string_view default_value,
                    ModelConfig& config) {
  const std::string value = fields.OptionalString(name).value_or(std::string(default_value));
  std::string names;
  for (const ActivationName& known : kActivations) {
    if (known.name == value) {
      config.activation = known.activation;
      return;
    }
    absl::StrAppend(&names, names.empty() ? "" : ", ", "\"", known.name, "\"");
  }
  fields.Refuse(name, absl::StrCat("one of ", names));
}

void ReadTiedEmbeddings(ConfigFields& fields, bool default_value, ModelConfig& config) {
  config.tie_word_embeddings = fields.OptionalBool("tie_word_embeddings").value_or(default_value);
}

void ReadAttentionBias(ConfigFields& fields, ModelConfig& config) {
  config.qkv_bias = config.o_bias = fields.OptionalBool("attention_bias").value_or(false);
}

float ReadScale(ConfigFields& fields, absl::string_view name) {
  return static_cast<float>(fields.OptionalNumber(name, -kMaxScale, kMaxScale).value_or(1.0));
}

float ReadSoftCap(ConfigFields& fields, absl::string_view name) {
  return static_cast<float>(fields.OptionalNumber(name, 1e-3, kMaxScale).value_or(0.0));
}

void ReadRope(ConfigFields& fields, const RopeRules& rules, ModelConfig& config) {
  config.rope =
      ReadRopeConfig(fields,
                     {.default_theta = rules.default_theta,
                      .max_position_embeddings = config.max_position_embeddings,
                      .head_dim = config.head_dim,
                      .original_max_position_embeddings = rules.original_max_position_embeddings,
                      .may_be_partial = rules.may_be_partial});
}

void ReadUniformWindow(ConfigFields& fields, ModelConfig& config) {
  config.sliding_window = fields.OptionalInt("sliding_window", 1, 1 << 30);
  const bool has_window = config.sliding_window.has_value();
  for (const bool sliding : ReadLayerTypes(fields, config)) {
    if (sliding == has_window) continue;
    fields.Refuse("layer_types",
                  has_window ? "\"sliding_attention\" for every layer, as sliding_window is set"
                             : "\"full_attention\" for every layer, as sliding_window is null");
  }
}

void ReadSlidingLayers(ConfigFields& fields, std::vector<bool> by_default, ModelConfig& config) {
  std::vector<bool> sliding = ReadLayerTypes(fields, config);
  config.sliding_layers = sliding.empty() ? std::move(by_default) : std::move(sliding);
}

void ReadQwenWindow(ConfigFields& fields, ModelConfig& config) {
  const bool uses_window = fields.OptionalBool("use_sliding_window").value_or(false);
  const absl::optional<int32_t> window = fields.OptionalInt("sliding_window", 1, 1 << 30);
  // Layers from this one on have the window; the rest see everything.
  const int32_t first_layer =
      fields.OptionalInt("max_window_layers", 0, kMaxLayers).value_or(config.num_layers);
  if (uses_window) {
    config.sliding_window = window.value_or(4096);  // transformers' default
    std::vector<bool> by_default;
    for (int32_t i = 0; i < config.num_layers; ++i) by_default.push_back(i >= first_layer);
    return ReadSlidingLayers(fields, std::move(by_default), config);
  }
  for (const bool sliding : ReadLayerTypes(fields, config)) {
    if (sliding) {
      fields.Refuse("layer_types",
                    "\"full_attention\" for every layer, as use_sliding_window is not true");
    }
  }
}

void ReadLlamaFields(ConfigFields& fields,
                     ModelConfig& config,
                     const RopeRules& rope,
                     const ShapeNames& names) {
  ReadShape(fields, names, config);
  ReadNormEps(fields, "rms_norm_eps", config);
  ReadTiedEmbeddings(fields, false, config);
  ReadActivation(fields, "hidden_act", "silu", config);
  ReadRope(fields, rope, config);
}

}  // namespace pagoda::engine
