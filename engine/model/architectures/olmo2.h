#pragma once

#include "engine/model/architecture.h"

namespace pagoda::engine {

extern const Architecture kOlmo2ForCausalLM;

}  // namespace pagoda::engine
