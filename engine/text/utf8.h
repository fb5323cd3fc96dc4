#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace pagoda::engine {

// RFC 3629: no surrogates, no overlong forms, nothing above U+10FFFF.
bool IsValidUtf8(absl::string_view bytes);

// Appends `bytes` to `text` as valid UTF-8, each maximal subpart of an ill-formed sequence as one
// U+FFFD (Unicode 15, section 3.9). Returns how many bytes at the end were not appended because
// they may begin a character: 0 to 3.
size_t AppendUtf8(absl::string_view bytes, std::string* text);

// The character that begins at *offset, which moves past it. REQUIRES: valid UTF-8, *offset at the
// start of a character.
inline char32_t NextCodePoint(absl::string_view text, size_t* offset) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(text[i])); };
  const size_t i = *offset;
  const char32_t lead = byte(i);
  if (lead < 0x80) return *offset += 1, lead;
  if (lead < 0xE0) return *offset += 2, (lead & 0x1F) << 6 | (byte(i + 1) & 0x3F);
  if (lead < 0xF0)
    return *offset += 3, (lead & 0x0F) << 12 | (byte(i + 1) & 0x3F) << 6 | (byte(i + 2) & 0x3F);
  return *offset += 4, (lead & 0x07) << 18 | (byte(i + 1) & 0x3F) << 12 |
                           (byte(i + 2) & 0x3F) << 6 | (byte(i + 3) & 0x3F);
}

// Appends a character in UTF-8. REQUIRES: no surrogate, at most U+10FFFF.
void AppendCodePoint(char32_t character, std::string* text);

}  // namespace pagoda::engine
