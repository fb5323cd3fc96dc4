#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda::engine::jinja {

enum class TokenKind {
  kText,         // template data
  kOutputBegin,  // {{
  kOutputEnd,    // }}
  kBlockBegin,   // {%
  kBlockEnd,     // %}
  kName,
  kString,
  kInt,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  std::string text;  // for kString: its value
  int line = 0;
};

// Splits a template as jinja2 does with trim_blocks and lstrip_blocks on and keep_trailing_newline
// off: comments and
// {% raw %} are resolved, white-space control is applied. INVALID_ARGUMENT with the line for what
// it cannot read.
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

}  // namespace pagoda::engine::jinja
