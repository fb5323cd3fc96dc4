#include "engine/text/utf8.h"

#include <cstdint>
#include <cstring>

namespace pagoda::engine {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";

// How many bytes at the start of `s` are ASCII.
size_t AsciiPrefix(absl::string_view s) {
  size_t i = 0;
  for (; i + 8 <= s.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, s.data() + i, 8);
    if ((word & 0x8080808080808080u) != 0) break;
  }
  while (i < s.size() && static_cast<uint8_t>(s[i]) < 0x80) ++i;
  return i;
}

struct Character {
  size_t num_bytes;  // of the character, or of the maximal subpart of an ill-formed sequence
  bool valid;
  bool truncated;  // not valid only because the bytes end
};

// The character at the start of `s`, which is not empty: table 3-7 of the Unicode standard. The
// second byte's range depends on the first, which keeps out overlong forms, surrogates and what is
// above U+10FFFF.
Character NextCharacter(absl::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {1, false, false};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint8_t low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < length; ++i) {
    if (i == s.size()) return {i, false, true};
    if (byte(i) < low || byte(i) > high) return {i, false, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true, false};
}

}  // namespace

bool IsValidUtf8(absl::string_view bytes) {
  for (;;) {
    bytes.remove_prefix(AsciiPrefix(bytes));
    if (bytes.empty()) return true;
    const Character character = NextCharacter(bytes);
    if (!character.valid) return false;
    bytes.remove_prefix(character.num_bytes);
  }
}

size_t AppendUtf8(absl::string_view bytes, std::string* text) {
  size_t begin = 0;  // of the valid bytes not yet appended
  size_t i = 0;
  while (i < bytes.size()) {
    i += AsciiPrefix(bytes.substr(i));
    if (i == bytes.size()) break;
    const Character character = NextCharacter(bytes.substr(i));
    if (!character.valid) {
      text->append(bytes.data() + begin, i - begin);
      if (character.truncated) return character.num_bytes;
      text->append(kReplacement.data(), kReplacement.size());
      begin = i + character.num_bytes;
    }
    i += character.num_bytes;
  }
  text->append(bytes.data() + begin, bytes.size() - begin);
  return 0;
}

void AppendCodePoint(char32_t character, std::string* text) {
  const auto push = [text](char32_t byte) { text->push_back(static_cast<char>(byte)); };
  const auto continuation = [&](int shift) { push(0x80 | (character >> shift & 0x3F)); };
  if (character < 0x80) {
    push(character);
  } else if (character < 0x800) {
    push(0xC0 | character >> 6);
    continuation(0);
  } else if (character < 0x10000) {
    push(0xE0 | character >> 12);
    continuation(6);
    continuation(0);
  } else {
    push(0xF0 | character >> 18);
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

}  // namespace pagoda::engine
