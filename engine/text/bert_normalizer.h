#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/text/json_element.h"
#include "engine/text/normalizer.h"

namespace pagoda::engine {

// From an element of type "BertNormalizer": control characters go, white space becomes blanks,
// blanks around Chinese characters; accents and capitals go where asked for.
absl::StatusOr<std::unique_ptr<Normalizer>> MakeBertNormalizer(const JsonElement& element);

}  // namespace pagoda::engine
