#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/jinja/call.h"

namespace pagoda::engine::jinja {

bool IsFilter(absl::string_view name);

// value | name(arguments). REQUIRES: IsFilter(name).
absl::StatusOr<Value> ApplyFilter(absl::string_view name,
                                  const Value& value,
                                  const Arguments& arguments,
                                  Budget* budget);

// Elements of an iterable: list items, dict keys, characters; nothing for undefined.
absl::StatusOr<List> Elements(const Value& value, Budget* budget);

// value.name or value['name'], undefined where there is none (lists by integer names).
Value Attribute(const Value& value, absl::string_view name);

}  // namespace pagoda::engine::jinja
