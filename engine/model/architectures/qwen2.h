#pragma once

#include "engine/model/architecture.h"

namespace pagoda::engine {

extern const Architecture kQwen2ForCausalLM;

}  // namespace pagoda::engine
