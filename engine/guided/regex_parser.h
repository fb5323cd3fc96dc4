#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/guided/expression.h"
#include "engine/guided/limits.h"

namespace pagoda::engine::guided {

// How a pattern is meant.
enum class RegexUse : uint8_t {
  // Of a request: the whole output matches. "." is everything but a newline; \d, \w and \s are
  // ASCII, \D, \W and \S everything else.
  kWholeText,
  // Of a JSON schema: a part of the string matches, unless ^ and $ say otherwise. Where dialects of
  // validators differ, what all of them take: "." is no line separator of any kind, and \D, \W and
  // \S are ASCII as well.
  kSchemaPattern,
};

// Parses a regular expression: alternatives, groups, classes, quantifiers (lazy ones mean the
// same), ^ and $ at the ends of alternatives. INVALID_ARGUMENT with the position for everything
// else, such as look-around, references, word boundaries, \p and anchors within groups.
absl::StatusOr<ExpressionPtr> ParseRegex(absl::string_view pattern,
                                         RegexUse use,
                                         const Limits& limits);

}  // namespace pagoda::engine::guided
