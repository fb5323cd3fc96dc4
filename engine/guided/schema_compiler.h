#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/guided/grammar.h"

namespace pagoda::engine::guided {

// Adds the JSON texts that satisfy a JSON schema to `grammar`, whose root they become. Every text
// parses and satisfies the schema; not every document that does is among them: properties come in
// the order of the schema, others than those it names only where additionalProperties is given
// (then without escapes in their names), items beyond prefixItems only where items or minItems is
// given, and json_grammar.h says how values are written. INVALID_ARGUMENT naming the place and
// the keyword where that cannot be had.
absl::Status CompileSchema(absl::string_view text, Grammar* grammar);

}  // namespace pagoda::engine::guided
