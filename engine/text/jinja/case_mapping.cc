#include "engine/text/jinja/case_mapping.h"

#include <cstdint>
#include <unicode/uchar.h>
#include <unicode/ustring.h>

#include "engine/text/utf8.h"

namespace pagoda::engine::jinja {
namespace {

enum class Case { kUpper, kLower, kTitle };

constexpr char32_t kSigma = 0x3A3;
constexpr char32_t kFinalSigma = 0x3C2;

bool IsCased(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASED) != 0; }
bool IsCaseIgnorable(char32_t c) {
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASE_IGNORABLE) != 0;
}

// One character may become up to three. `out` gets them.
void AppendMapped(char32_t c, Case to, std::string* out) {
  if (c < 0x80) {
    const bool is_lower = c >= 'a' && c <= 'z', is_upper = c >= 'A' && c <= 'Z';
    if (to == Case::kLower && is_upper) c += 'a' - 'A';
    if (to != Case::kLower && is_lower) c -= 'a' - 'A';
    out->push_back(static_cast<char>(c));
    return;
  }
  constexpr int32_t kMaxUnits = 8;
  UChar from[2], mapped[kMaxUnits];
  int32_t from_size = 0;
  U16_APPEND_UNSAFE(from, from_size, c);
  UErrorCode error = U_ZERO_ERROR;
  int32_t size = 0;
  switch (to) {
    case Case::kUpper:
      size = u_strToUpper(mapped, kMaxUnits, from, from_size, "", &error);
      break;
    case Case::kLower:
      size = u_strToLower(mapped, kMaxUnits, from, from_size, "", &error);
      break;
    case Case::kTitle:
      size = u_strToTitle(mapped, kMaxUnits, from, from_size, nullptr, "", &error);
      break;
  }
  if (U_FAILURE(error)) return AppendCodePoint(c, out);
  for (int32_t i = 0; i < size;) {
    UChar32 code = 0;
    U16_NEXT(mapped, i, size, code);
    AppendCodePoint(static_cast<char32_t>(code), out);
  }
}

// The next letter that counts is cased.
bool IsBeforeCased(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const char32_t c = NextCodePoint(text, &i);
    if (!IsCaseIgnorable(c)) return IsCased(c);
  }
  return false;
}

// `case_of(c)` is asked for one character after the other.
template <typename CaseOf>
MarkedString Map(const MarkedString& text, CaseOf case_of) {
  MarkedString out;
  out.text.reserve(text.text.size());
  const absl::string_view from = text.text;
  bool after_cased = false;
  for (size_t i = 0; i < text.text.size();) {
    const size_t begin = i;
    const char32_t c = NextCodePoint(text.text, &i);
    const Case to = case_of(c);
    if (c == kSigma && to == Case::kLower && after_cased && !IsBeforeCased(from.substr(i))) {
      AppendCodePoint(kFinalSigma, &out.text);
    } else {
      AppendMapped(c, to, &out.text);
    }
    if (!IsCaseIgnorable(c)) after_cased = IsCased(c);
    out.trusted.resize(out.text.size(), text.trusted[begin]);
  }
  return out;
}

}  // namespace

MarkedString ToUpper(const MarkedString& text) {
  return Map(text, [](char32_t) { return Case::kUpper; });
}

MarkedString ToLower(const MarkedString& text) {
  return Map(text, [](char32_t) { return Case::kLower; });
}

MarkedString ToTitle(const MarkedString& text) {
  bool after_cased = false;
  return Map(text, [&after_cased](char32_t c) {
    const Case to = after_cased ? Case::kLower : Case::kTitle;
    after_cased = IsCased(c);
    return to;
  });
}

MarkedString Capitalized(const MarkedString& text) {
  bool is_first = true;
  return Map(text, [&is_first](char32_t) {
    const Case to = is_first ? Case::kTitle : Case::kLower;
    is_first = false;
    return to;
  });
}

MarkedString WordsCapitalized(const MarkedString& text) {
  bool begins_word = true;
  return Map(text, [&begins_word](char32_t c) {
    const bool is_between = u_isUWhiteSpace(static_cast<UChar32>(c)) != 0 ||
                            (c >= 0x1C && c <= 0x1F) || c == '-' || c == '(' || c == '{' ||
                            c == '[' || c == '<';
    const Case to = begins_word && !is_between ? Case::kUpper : Case::kLower;
    begins_word = is_between;
    return to;
  });
}

}  // namespace pagoda::engine::jinja
