#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "engine/model/config_fields.h"
#include "engine/model/model_config.h"

namespace pagoda::engine {

// Parts of config.json that architectures share, for their read_config functions.

inline constexpr int32_t kMaxExperts = 1 << 14;
inline constexpr int32_t kMaxExpertWidth = 1 << 24;

// Spellings of one field.
using FieldNames = std::vector<absl::string_view>;

struct ShapeNames {
  FieldNames num_layers = {"num_hidden_layers"};
  FieldNames hidden_size = {"hidden_size"};
  FieldNames intermediate_size = {"intermediate_size"};
  FieldNames num_heads = {"num_attention_heads"};
  FieldNames positions = {"max_position_embeddings"};
  // Widths and limits of architectures that may leave them out; absent: the field is required.
  absl::optional<int32_t> default_mlp_ratio;  // intermediate_size / hidden_size
  absl::optional<int32_t> default_positions;
  absl::optional<int32_t> default_head_dim;  // absent: hidden_size / heads
};

// Marks as read what never reaches the arithmetic of a forward pass.
void IgnoreHarmlessFields(ConfigFields& fields);
// Layers, widths, heads (each with its own keys, hidden_size / num_heads wide or head_dim) and the
// context.
void ReadShape(ConfigFields& fields, const ShapeNames& names, ModelConfig& config);
// num_key_value_heads; as many as query heads where it is absent and `required` is false.
void ReadKvHeads(ConfigFields& fields, bool required, ModelConfig& config);
void ReadNormEps(ConfigFields& fields, absl::string_view name, ModelConfig& config);
// `name` is the field of the activation, `default_value` its meaning where it is absent.
void ReadActivation(ConfigFields& fields,
                    absl::string_view name,
                    absl::string_view default_value,
                    ModelConfig& config);
void ReadTiedEmbeddings(ConfigFields& fields, bool default_value, ModelConfig& config);
// attention_bias, of q, k, v and the output.
void ReadAttentionBias(ConfigFields& fields, ModelConfig& config);
// A factor; 1 where the field is absent.
float ReadScale(ConfigFields& fields, absl::string_view name);
// A limit; 0 (none) where the field is absent.
float ReadSoftCap(ConfigFields& fields, absl::string_view name);

// Rotary embedding in the spellings of rope_config.h; `default_theta` where rope_theta is absent.
struct RopeRules {
  double default_theta = 10000.0;
  int32_t original_max_position_embeddings = 0;  // given outside of rope_scaling; 0: not
  bool may_be_partial = false;                   // partial_rotary_factor may be less than 1
};
void ReadRope(ConfigFields& fields, const RopeRules& rules, ModelConfig& config);

// sliding_window of every layer; where there is layer_types, it must say the same.
void ReadUniformWindow(ConfigFields& fields, ModelConfig& config);
// layer_types, or `by_default` where the field is absent; true: a layer with the window. REQUIRES:
// config.sliding_window is set.
void ReadSlidingLayers(ConfigFields& fields, std::vector<bool> by_default, ModelConfig& config);
// use_sliding_window, sliding_window, max_window_layers and layer_types, as Qwen2 has them.
void ReadQwenWindow(ConfigFields& fields, ModelConfig& config);

// What Llama and its many descendants have: shape, RMS norms, SiLU, rotary embedding, head counts.
void ReadLlamaFields(ConfigFields& fields,
                     ModelConfig& config,
                     const RopeRules& rope = {},
                     const ShapeNames& names = {});

}  // namespace pagoda::engine
