#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/jinja/ast.h"

namespace pagoda::engine::jinja {

// Parses a template to a kBlock. What chat templates do not use (include, import, extends, call
// blocks, filters and tests that do not exist) is INVALID_ARGUMENT with the line.
absl::StatusOr<NodePtr> Parse(absl::string_view source);

}  // namespace pagoda::engine::jinja
