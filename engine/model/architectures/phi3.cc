#include "engine/model/architectures/phi3.h"

#include "engine/model/config_readers.h"

namespace pagoda::engine {
namespace {

// The checkpoints bring their own code along, which transformers has too.
constexpr absl::string_view kPhi3HarmlessFields[] = {
    "auto_map", "embd_pdrop", "resid_pdrop", "interpolate_factor", "full_attn_mod"};

void ReadPhi3Config(ConfigFields& fields, ModelConfig& config) {
  const int32_t original =
      fields.OptionalInt("original_max_position_embeddings", 1, 1 << 30).value_or(0);
  ReadLlamaFields(
      fields, config, {.original_max_position_embeddings = original, .may_be_partial = true});
  ReadKvHeads(fields, /*required=*/false, config);
  ReadUniformWindow(fields, config);
  fields.RequireNeutral("attention_bias", false);
  fields.RequireNeutral("mlp_bias", false);
  fields.RequireNeutral("lm_head_bias", false);
  fields.Ignore(kPhi3HarmlessFields);
}

}  // namespace

const Architecture kPhi3ForCausalLM = {
    .name = "Phi3ForCausalLM",
    .read_config = ReadPhi3Config,
    .tensors = {.qkv = "self_attn.qkv_proj", .gate_up = "mlp.gate_up_proj"},
    .run_layers = RunGatedLayers,
};

}  // namespace pagoda::engine
