#pragma once

#include "engine/model/architecture.h"

namespace pagoda::engine {

extern const Architecture kMptForCausalLM;
// The same under the name that its makers' own code gives it.
extern const Architecture kMosaicMptForCausalLM;

}  // namespace pagoda::engine
