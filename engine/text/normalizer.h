#pragma once

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "engine/text/json_element.h"

namespace pagoda::engine {

// From the element "normalizer", absent where there is none. Byte-level models that leave text as
// it is have none; the error names any other.
absl::Status CheckNormalizer(const absl::optional<JsonElement>& element);

}  // namespace pagoda::engine
