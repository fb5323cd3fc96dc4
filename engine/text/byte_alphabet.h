#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace pagoda::engine {

// The alphabet in which byte-level vocabularies are written: every byte is one printable character.
// Bytes that are printable in Latin-1 stand for themselves; the other 68 are U+0100 and up, in
// order.
namespace byte_alphabet {

// Appends the character of `byte`, in UTF-8.
void AppendCharacter(uint8_t byte, std::string* text);
// Appends the bytes that `text` spells to `bytes`; false, and nothing appended, when a character is
// not of the alphabet.
bool AppendBytes(absl::string_view text, std::string* bytes);

}  // namespace byte_alphabet
}  // namespace pagoda::engine
