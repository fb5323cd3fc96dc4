#pragma once

#include <cstdint>

namespace pagoda::engine::guided {

// Bytes that texts and constraints mostly take as one. A set of groups is a word of bits; one more
// bit stands for whole characters of several bytes.
inline constexpr int kNumByteGroups = 23;
inline constexpr uint32_t kLongCharacters = 1U << kNumByteGroups;
// Of no state: not to be told.
inline constexpr uint32_t kAnyBytes = ~uint32_t{0};

constexpr int ByteGroup(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return 0;  // first of a character of two bytes
  if (byte >= 0xE0 && byte <= 0xEF) return 1;
  if (byte >= 0xF0 && byte <= 0xF4) return 2;
  if (byte >= 0xC0) return 3;  // in no text
  if (byte >= 0x80) return 4;
  if (byte >= '0' && byte <= '9') return 5;
  if (byte >= 'a' && byte <= 'f') return 6;
  if (byte >= 'g' && byte <= 'z') return 7;
  if (byte >= 'A' && byte <= 'F') return 8;
  if (byte >= 'G' && byte <= 'Z') return 9;
  if (byte == '\t' || byte == '\n' || byte == '\r') return 10;
  if (byte < 0x20 || byte == 0x7F) return 11;
  constexpr char kAlone[] = {' ', '"', '\\', '-', '_', '.', ',', ':', '/'};
  for (int i = 0; i < static_cast<int>(sizeof(kAlone)); ++i)
    if (byte == static_cast<uint8_t>(kAlone[i])) return 12 + i;
  const bool is_bracket = byte == '{' || byte == '}' || byte == '[' || byte == ']';
  return is_bracket ? 21 : 22;
}

// The characters of several bytes: first bytes, what may follow these, and how many more of 0x80 to
// 0xBF.
struct LongCharacters {
  uint8_t first_low, first_high;
  uint8_t second_low, second_high;
  int num_more;
};
inline constexpr LongCharacters kLongCharacterRanges[] = {{0xC2, 0xDF, 0x80, 0xBF, 0},
                                                          {0xE0, 0xE0, 0xA0, 0xBF, 1},
                                                          {0xE1, 0xEC, 0x80, 0xBF, 1},
                                                          {0xED, 0xED, 0x80, 0x9F, 1},
                                                          {0xEE, 0xEF, 0x80, 0xBF, 1},
                                                          {0xF0, 0xF0, 0x90, 0xBF, 2},
                                                          {0xF1, 0xF3, 0x80, 0xBF, 2},
                                                          {0xF4, 0xF4, 0x80, 0x8F, 2}};

}  // namespace pagoda::engine::guided
