#include "engine/guided/pattern_scanner.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace pagoda::engine::guided {

bool PatternScanner::Take(absl::string_view text) {
  if (!LookingAt(text)) return false;
  position_ += text.size();
  return true;
}

absl::Status PatternScanner::ErrorAt(size_t position, absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat("at byte ", position, ": ", what));
}

absl::Status PatternScanner::Error(absl::string_view what) const {
  return ErrorAt(position_, what);
}

absl::StatusOr<uint32_t> PatternScanner::Character() {
  if (at_end()) return Error("it ends where a character is expected");
  const auto byte = [this](size_t i) {
    return position_ + i < text_.size() ? static_cast<uint8_t>(text_[position_ + i]) : uint8_t{0};
  };
  const uint8_t first = byte(0);
  if (first < 0x80) {
    ++position_;
    return first;
  }
  const int size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4) return Error("the text is not valid UTF-8");
  uint32_t c = first & (0x7FU >> size);
  for (int i = 1; i < size; ++i) {
    if ((byte(static_cast<size_t>(i)) & 0xC0) != 0x80) return Error("the text is not valid UTF-8");
    c = (c << 6) | (byte(static_cast<size_t>(i)) & 0x3FU);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (c < kLeast[size] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) {
    return Error("the text is not valid UTF-8");
  }
  position_ += static_cast<size_t>(size);
  return c;
}

absl::StatusOr<int32_t> PatternScanner::Count() {
  const size_t begin = position_;
  int64_t value = 0;
  while (absl::ascii_isdigit(static_cast<unsigned char>(peek()))) {
    value = value * 10 + (peek() - '0');
    if (value > limits_.max_count) {
      return ErrorAt(begin, absl::StrCat("the count is above the limit of ", limits_.max_count));
    }
    ++position_;
  }
  if (position_ == begin) return Error("expected a number");
  return static_cast<int32_t>(value);
}

absl::StatusOr<uint32_t> PatternScanner::Hex(int num_digits) {
  const size_t begin = position_;
  uint32_t value = 0;
  for (int i = 0; i < num_digits; ++i) {
    const auto c = static_cast<unsigned char>(peek());
    if (!absl::ascii_isxdigit(c)) {
      return ErrorAt(begin, absl::StrCat("expected ", num_digits, " hexadecimal digits"));
    }
    const int digit = absl::ascii_isdigit(c) ? c - '0' : absl::ascii_tolower(c) - 'a' + 10;
    value = value * 16 + static_cast<uint32_t>(digit);
    ++position_;
  }
  if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
    return ErrorAt(begin, "names no character");
  }
  return value;
}

}  // namespace pagoda::engine::guided
