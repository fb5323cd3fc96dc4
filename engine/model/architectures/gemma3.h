#pragma once

#include "engine/model/architecture.h"

namespace pagoda::engine {

extern const Architecture kGemma3ForCausalLM;

}  // namespace pagoda::engine
