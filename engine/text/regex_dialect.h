#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda::engine {

// Tokenizer files hold patterns for Oniguruma in Ruby syntax; this rewrites one for PCRE2 with the
// same meaning. What the two read differently is rewritten (\s, \w) or refused with
// INVALID_ARGUMENT naming construct and place, never approximated: class set operations, negated
// classes in classes, \h \R \X \K \G \b \B, {n,m}+, {,n}, (?m) and (?s).
absl::StatusOr<std::string> TranslatePattern(absl::string_view pattern);

}  // namespace pagoda::engine
