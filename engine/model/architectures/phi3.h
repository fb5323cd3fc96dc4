#pragma once

#include "engine/model/architecture.h"

namespace pagoda::engine {

extern const Architecture kPhi3ForCausalLM;

}  // namespace pagoda::engine
