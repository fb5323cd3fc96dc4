#include "engine/text/byte_alphabet.h"

#include <array>

namespace pagoda::engine::byte_alphabet {
namespace {

constexpr bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// One more than the last character: 256 + the 68 bytes that do not stand for themselves.
constexpr int kNumCodePoints = 256 + 68;

struct Tables {
  std::array<uint16_t, 256> code_point_of_byte{};
  std::array<int16_t, kNumCodePoints> byte_of_code_point{};  // -1: none
};

constexpr Tables MakeTables() {
  Tables tables;
  for (int16_t& byte : tables.byte_of_code_point) byte = -1;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const int code_point = StandsForItself(byte) ? byte : next++;
    tables.code_point_of_byte[byte] = static_cast<uint16_t>(code_point);
    tables.byte_of_code_point[code_point] = static_cast<int16_t>(byte);
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

void AppendCharacter(uint8_t byte, std::string* text) {
  const uint16_t code_point = kTables.code_point_of_byte[byte];
  if (code_point < 0x80) {
    text->push_back(static_cast<char>(code_point));
    return;
  }
  text->push_back(static_cast<char>(0xC0 | (code_point >> 6)));
  text->push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
}

bool AppendBytes(absl::string_view text, std::string* bytes) {
  const size_t size_before = bytes->size();
  for (size_t i = 0; i < text.size(); ++i) {
    int code_point = static_cast<uint8_t>(text[i]);
    if (code_point >= 0x80) {
      // Every character of the alphabet takes at most two bytes.
      const bool two_bytes = (code_point & 0xE0) == 0xC0 && i + 1 < text.size();
      code_point = two_bytes ? (code_point & 0x1F) << 6 | (text[++i] & 0x3F) : kNumCodePoints;
    }
    if (code_point >= kNumCodePoints || kTables.byte_of_code_point[code_point] < 0) {
      bytes->resize(size_before);
      return false;
    }
    bytes->push_back(static_cast<char>(kTables.byte_of_code_point[code_point]));
  }
  return true;
}

}  // namespace pagoda::engine::byte_alphabet
