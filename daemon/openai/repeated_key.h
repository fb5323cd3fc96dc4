#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace pagoda::daemon::openai {

// The first key that an object in the JSON text has twice, with its path, such as
// "messages[1].role"; absent: none. Of such keys some readers take the first and some the last, so
// that what was checked on the way need not be what is done. REQUIRES: the text is JSON.
absl::optional<std::string> FindRepeatedKey(absl::string_view text);

}  // namespace pagoda::daemon::openai
