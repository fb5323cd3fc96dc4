#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace pagoda::engine {

// RFC 3629: no surrogates, no overlong forms, nothing above U+10FFFF.
bool IsValidUtf8(absl::string_view bytes);

// Appends `bytes` to `text` as valid UTF-8, each maximal subpart of an ill-formed sequence as one
// U+FFFD (Unicode 15, section 3.9). Returns how many bytes at the end were not appended because
// they may begin a character: 0 to 3.
size_t AppendUtf8(absl::string_view bytes, std::string* text);

}  // namespace pagoda::engine
