#include "engine/model/architectures/qwen3.h"

#include "engine/model/config_readers.h"

namespace pagoda::engine {
namespace {

void ReadQwen3Config(ConfigFields& fields, ModelConfig& config) {
  ReadLlamaFields(fields, config, {}, {.default_head_dim = 128});
  ReadKvHeads(fields, /*required=*/false, config);
  ReadQwenWindow(fields, config);
  ReadAttentionBias(fields, config);
}

}  // namespace

const Architecture kQwen3ForCausalLM = {
    .name = "Qwen3ForCausalLM",
    .read_config = ReadQwen3Config,
    .tensors = {.q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm"},
    .run_layers = RunGatedLayers,
};

}  // namespace pagoda::engine
