#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/guided/constraint.h"

namespace pagoda::fuzz {

// Compiles the input as a constraint of the kind: it is taken, or refused as INVALID_ARGUMENT with
// a short reason. Where it is taken, its mask and its reading of tokens agree along some text.
void RunConstraint(engine::guided::ConstraintSource::Kind kind, const uint8_t* data, size_t size);

}  // namespace pagoda::fuzz
