#pragma once

#include "engine/model/architecture.h"

namespace pagoda::engine {

extern const Architecture kLlamaForCausalLM;

}  // namespace pagoda::engine
