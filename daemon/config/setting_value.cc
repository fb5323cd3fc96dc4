#include "daemon/config/setting_value.h"

#include <charconv>
#include <cmath>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace pagoda::daemon {
namespace {

struct Unit {
  absl::string_view suffix;
  double factor;
};

constexpr double kKilo = 1e3, kKibi = 1024;

constexpr Unit kCountUnits[] = {{"", 1},
                                {"k", kKilo},
                                {"m", kKilo* kKilo},
                                {"g", kKilo* kKilo* kKilo},
                                {"K", kKibi},
                                {"M", kKibi* kKibi},
                                {"G", kKibi* kKibi* kKibi}};
constexpr Unit kByteUnits[] = {{"", 1},
                               {"B", 1},
                               {"kB", kKilo},
                               {"KB", kKilo},
                               {"MB", kKilo* kKilo},
                               {"GB", kKilo* kKilo* kKilo},
                               {"TB", kKilo* kKilo* kKilo* kKilo},
                               {"K", kKibi},
                               {"KiB", kKibi},
                               {"M", kKibi* kKibi},
                               {"MiB", kKibi* kKibi},
                               {"G", kKibi* kKibi* kKibi},
                               {"GiB", kKibi* kKibi* kKibi},
                               {"T", kKibi* kKibi* kKibi* kKibi},
                               {"TiB", kKibi* kKibi* kKibi* kKibi}};
constexpr Unit kTimeUnits[] = {
    {"", 1e3}, {"s", 1e3}, {"ms", 1}, {"m", 60 * 1e3}, {"min", 60 * 1e3}, {"h", 3600 * 1e3}};

// Above this a double no longer holds every whole number.
constexpr double kMaxWhole = 9007199254740992.0;

absl::StatusOr<uint64_t> ParseWithUnit(absl::string_view text,
                                       absl::Span<const Unit> units,
                                       absl::string_view expected) {
  const absl::Status error = absl::InvalidArgumentError(absl::StrCat("expected ", expected));
  const absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  const size_t end_of_number = trimmed.find_first_not_of("0123456789.");
  const absl::string_view number = trimmed.substr(0, end_of_number);
  const absl::string_view suffix =
      end_of_number == absl::string_view::npos
          ? absl::string_view()
          : absl::StripLeadingAsciiWhitespace(trimmed.substr(end_of_number));
  double value = 0;
  if (number.empty() || !absl::SimpleAtod(number, &value)) return error;
  for (const Unit& unit : units) {
    if (suffix != unit.suffix) continue;
    const double scaled = value * unit.factor;
    if (scaled > kMaxWhole || scaled != std::floor(scaled)) return error;
    return static_cast<uint64_t>(scaled);
  }
  return error;
}

}  // namespace

absl::StatusOr<uint64_t> ParseCount(absl::string_view text) {
  return ParseWithUnit(text, kCountUnits, "a whole number such as 256, 32k (32000) or 32K (32768)");
}

absl::StatusOr<uint64_t> ParseBytes(absl::string_view text) {
  return ParseWithUnit(text, kByteUnits, "a number of bytes such as 2GiB, 512MB or 1048576");
}

absl::StatusOr<uint64_t> ParseMilliseconds(absl::string_view text) {
  return ParseWithUnit(text, kTimeUnits, "a duration such as 30s, 500ms or 2m");
}

absl::StatusOr<double> ParseReal(absl::string_view text) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) {
    return absl::InvalidArgumentError("expected a number such as 0.9");
  }
  return value;
}

absl::StatusOr<bool> ParseSwitch(absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(text);
  for (const absl::string_view yes : {"true", "yes", "on", "1"}) {
    if (lower == yes) return true;
  }
  for (const absl::string_view no : {"false", "no", "off", "0"}) {
    if (lower == no) return false;
  }
  return absl::InvalidArgumentError("expected true or false");
}

std::string FormatByteCount(uint64_t bytes) {
  constexpr absl::string_view kSuffixes[] = {"", "KiB", "MiB", "GiB", "TiB"};
  size_t suffix = 0;
  while (bytes != 0 && bytes % 1024 == 0 && suffix + 1 < std::size(kSuffixes)) {
    bytes /= 1024;
    ++suffix;
  }
  return absl::StrCat(bytes, kSuffixes[suffix]);
}

std::string FormatReal(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(std::begin(text), std::end(text), value);
  return std::string(text, end);
}

std::string FormatMilliseconds(uint64_t milliseconds) {
  return milliseconds % 1000 == 0 ? absl::StrCat(milliseconds / 1000, "s")
                                  : absl::StrCat(milliseconds, "ms");
}

}  // namespace pagoda::daemon
