#pragma once

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace pagoda::engine {

// Visits the extended grapheme clusters of a text (what readers take for one character) in order.
// REQUIRES: valid UTF-8.
void ForEachGrapheme(absl::string_view text,
                     absl::FunctionRef<void(size_t begin, size_t end)> visit);

}  // namespace pagoda::engine
