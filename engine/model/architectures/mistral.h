#pragma once

#include "engine/model/architecture.h"

namespace pagoda::engine {

extern const Architecture kMistralForCausalLM;

}  // namespace pagoda::engine
