#include "engine/model/architectures/mixtral.h"

#include <algorithm>

#include "engine/model/config_readers.h"

namespace pagoda::engine {
namespace {

// The spread of training's load over experts; no term of a forward pass.
constexpr absl::string_view kTrainingFields[] = {"router_aux_loss_coef", "router_jitter_noise"};

void ReadMixtralConfig(ConfigFields& fields, ModelConfig& config) {
  ReadLlamaFields(fields, config, {.default_theta = 1e6});
  ReadKvHeads(fields, /*required=*/true, config);
  ReadUniformWindow(fields, config);
  ExpertConfig experts;
  experts.num_experts = fields.RequiredInt("num_local_experts", 1, kMaxExperts);
  experts.experts_per_token =
      fields.RequiredInt("num_experts_per_tok", 1, std::max(experts.num_experts, 1));
  experts.intermediate_size = config.intermediate_size;
  config.experts = experts;
  fields.Ignore(kTrainingFields);
}

}  // namespace

const Architecture kMixtralForCausalLM = {
    .name = "MixtralForCausalLM",
    .read_config = ReadMixtralConfig,
    .tensors = {.router = "block_sparse_moe.gate",
                .experts = "block_sparse_moe.experts.",
                .expert_gate = "w1",
                .expert_up = "w3",
                .expert_down = "w2"},
    .run_layers = RunExpertLayers,
};

}  // namespace pagoda::engine
