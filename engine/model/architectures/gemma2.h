#pragma once

#include "engine/model/architecture.h"

namespace pagoda::engine {

extern const Architecture kGemma2ForCausalLM;

// What Gemma 3 has too: norms, activation, scales and soft caps.
void ReadGemmaFields(ConfigFields& fields, ModelConfig& config);

}  // namespace pagoda::engine
