#pragma once

#include "engine/model/architecture.h"

namespace pagoda::engine {

extern const Architecture kGraniteForCausalLM;

}  // namespace pagoda::engine
