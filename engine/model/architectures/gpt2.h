#pragma once

#include "engine/model/architecture.h"

namespace pagoda::engine {

extern const Architecture kGpt2LMHeadModel;

}  // namespace pagoda::engine
