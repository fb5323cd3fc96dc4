#pragma once

#include "engine/model/architecture.h"

namespace pagoda::engine {

extern const Architecture kStarcoder2ForCausalLM;

}  // namespace pagoda::engine
