#include "daemon/server/api_keys.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace pagoda::daemon {
namespace {

constexpr absl::string_view kScheme = "bearer ";

// Looks at every byte whatever it finds.
bool EqualInConstantTime(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

}  // namespace

absl::StatusOr<ApiKeys> ApiKeys::Parse(absl::string_view text) {
  ApiKeys keys;
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    if (!std::all_of(line.begin(), line.end(), [](char c) { return c > ' ' && c < 0x7F; })) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", line_number, ": expected a key of printable ASCII without spaces"));
    }
    keys.keys_.emplace_back(line);
  }
  if (keys.empty()) return absl::InvalidArgumentError("expected at least one key, one a line");
  return keys;
}

bool ApiKeys::Accept(absl::string_view authorization) const {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return false;
  const absl::string_view shown = absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
  bool known = false;
  for (const std::string& key : keys_) known = EqualInConstantTime(shown, key) || known;
  return known;
}

}  // namespace pagoda::daemon
