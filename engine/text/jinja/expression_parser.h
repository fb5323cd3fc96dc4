#pragma once

#include "absl/status/statusor.h"
#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/token_cursor.h"

namespace pagoda::engine::jinja {

// An expression, as in an argument: up to a token that is no part of it.
absl::StatusOr<NodePtr> ParseExpression(TokenCursor* cursor);
// Expressions with commas between them are a tuple, as in a tag. `with_conditional`: each may end
// in "if ... else ...".
absl::StatusOr<NodePtr> ParseTuple(TokenCursor* cursor, bool with_conditional);

}  // namespace pagoda::engine::jinja
