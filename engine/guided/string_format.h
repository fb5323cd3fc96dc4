#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace pagoda::engine::guided {

// A regular expression all of whose texts have the format (and not all texts that have it); none
// for formats that are not known.
absl::optional<absl::string_view> FormatPattern(absl::string_view format);

}  // namespace pagoda::engine::guided
