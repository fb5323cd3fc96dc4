#include "engine/model/architecture.h"

#include "absl/strings/str_cat.h"
#include "engine/model/architectures/llama.h"
#include "engine/model/architectures/mistral.h"

namespace pagoda::engine {
namespace {

constexpr const Architecture* kArchitectures[] = {
    &kLlamaForCausalLM,
    &kMistralForCausalLM,
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
