#include "engine/model/architecture.h"

#include "absl/strings/str_cat.h"
#include "engine/model/architectures/bloom.h"
#include "engine/model/architectures/gemma2.h"
#include "engine/model/architectures/gemma3.h"
#include "engine/model/architectures/gpt2.h"
#include "engine/model/architectures/granite.h"
#include "engine/model/architectures/llama.h"
#include "engine/model/architectures/mistral.h"
#include "engine/model/architectures/mixtral.h"
#include "engine/model/architectures/mpt.h"
#include "engine/model/architectures/olmo2.h"
#include "engine/model/architectures/phi3.h"
#include "engine/model/architectures/qwen2.h"
#include "engine/model/architectures/qwen3.h"
#include "engine/model/architectures/qwen3_moe.h"
#include "engine/model/architectures/starcoder2.h"

namespace pagoda::engine {
namespace {

constexpr const Architecture* kArchitectures[] = {
    &kLlamaForCausalLM,
    &kMistralForCausalLM,
    &kMixtralForCausalLM,
    &kQwen2ForCausalLM,
    &kQwen3ForCausalLM,
    &kQwen3MoeForCausalLM,
    &kGemma2ForCausalLM,
    &kGemma3ForCausalLM,
    &kPhi3ForCausalLM,
    &kOlmo2ForCausalLM,
    &kGraniteForCausalLM,
    &kStarcoder2ForCausalLM,
    &kGpt2LMHeadModel,
    &kBloomForCausalLM,
    &kMptForCausalLM,
    &kMosaicMptForCausalLM,
};

}  // namespace

const Architecture* FindArchitecture(absl::string_view name) {
  for (const Architecture* architecture : kArchitectures) {
    if (architecture->name == name) return architecture;
  }
  return nullptr;
}

std::string ArchitectureNames() {
  std::string names;
  for (const Architecture* architecture : kArchitectures) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", architecture->name);
  }
  return names;
}

}  // namespace pagoda::engine
