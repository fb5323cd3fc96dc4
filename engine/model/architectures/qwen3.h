#pragma once

#include "engine/model/architecture.h"

namespace pagoda::engine {

extern const Architecture kQwen3ForCausalLM;

}  // namespace pagoda::engine
