#include "engine/text/character_class.h"

#include <cstdint>
#include <unicode/uchar.h>

namespace pagoda::engine {
namespace {

// The versions of Unicode that the libraries' tables are of.
constexpr int kMarkVersion = 9;
constexpr int kBertVersion = 8;

bool IsKnown(char32_t c, int version) {
  if (c < 0x250) return true;  // all there since Unicode 1.1
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  return age[0] != 0 && age[0] <= version;
}

// General category as the tables of that version have it: ICU's, but for the few characters that
// have moved since.
uint32_t CategoryIn(int version, char32_t c) {
  switch (c) {
    case 0x166D:
    case 0x111C9:
      return U_GC_PO_MASK;
    case 0x1CF2:
    case 0x1CF3:
    case 0xA9BD:
      return U_GC_MC_MASK;
    case 0x1734:
      return U_GC_MN_MASK;
    case 0x1885:
    case 0x1886:
      return version < 9 ? U_GC_LO_MASK : U_GC_MN_MASK;
    default:
      return IsKnown(c, version) ? U_MASK(u_charType(static_cast<UChar32>(c))) : U_GC_CN_MASK;
  }
}

bool IsAsciiPunctuation(char32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}

}  // namespace

bool IsWhiteSpace(char32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)) != 0; }

bool IsMark(char32_t c) { return (CategoryIn(kMarkVersion, c) & U_GC_M_MASK) != 0; }

bool IsNonspacingMark(char32_t c) {
  return c >= 0x300 && (CategoryIn(kBertVersion, c) & U_GC_MN_MASK) != 0;
}

bool IsBertPunctuation(char32_t c) {
  if (c < 0x80) return IsAsciiPunctuation(c);
  return (CategoryIn(kBertVersion, c) & U_GC_P_MASK) != 0;
}

bool IsBertControl(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  return (CategoryIn(kBertVersion, c) & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK)) != 0;
}

}  // namespace pagoda::engine
