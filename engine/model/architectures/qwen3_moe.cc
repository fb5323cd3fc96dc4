#include "engine/model/architectures/qwen3_moe.h"

#include <algorithm>
#include <vector>

#include "engine/model/config_readers.h"

namespace pagoda::engine {
namespace {

// Experts are in every n-th layer, but not in those that are listed.
std::vector<bool> ReadDenseLayers(ConfigFields& fields, const ModelConfig& config) {
  const int32_t step =
      fields.OptionalInt("decoder_sparse_step", 1, std::max(config.num_layers, 1)).value_or(1);
  std::vector<bool> dense;
  for (int32_t i = 0; i < config.num_layers; ++i) dense.push_back((i + 1) % step != 0);
  for (const int32_t i : fields.IntOrList("mlp_only_layers", 0, config.num_layers - 1)) {
    dense[static_cast<size_t>(i)] = true;
  }
  return dense;
}

void ReadQwen3MoeConfig(ConfigFields& fields, ModelConfig& config) {
  ReadLlamaFields(fields, config);
  ReadKvHeads(fields, /*required=*/false, config);
  // Written by the library even where there is none.
  fields.RequireNeutral("use_sliding_window", false);
  fields.Ignore({"sliding_window", "max_window_layers"});
  ReadAttentionBias(fields, config);
  ExpertConfig experts;
  experts.num_experts =
      fields.RequiredInt(fields.Pick({"num_experts", "num_local_experts"}), 1, kMaxExperts);
  experts.experts_per_token =
      fields.RequiredInt("num_experts_per_tok", 1, std::max(experts.num_experts, 1));
  experts.intermediate_size = fields.RequiredInt("moe_intermediate_size", 1, kMaxExpertWidth);
  experts.normalise = fields.OptionalBool("norm_topk_prob").value_or(false);
  experts.dense_layers = ReadDenseLayers(fields, config);
  config.experts = experts;
  fields.Ignore({"router_aux_loss_coef"});
}

}  // namespace

const Architecture kQwen3MoeForCausalLM = {
    .name = "Qwen3MoeForCausalLM",
    .read_config = ReadQwen3MoeConfig,
    .tensors = {.q_norm = "self_attn.q_norm",
                .k_norm = "self_attn.k_norm",
                .router = "mlp.gate",
                .experts = "mlp.experts."},
    .run_layers = RunExpertLayers,
};

}  // namespace pagoda::engine
