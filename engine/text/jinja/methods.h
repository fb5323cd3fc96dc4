#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/jinja/call.h"

namespace pagoda::engine::jinja {

// object.name(arguments) for the methods of Python's str, dict and list that change nothing.
absl::StatusOr<Value> CallMethod(const Value& object,
                                 absl::string_view name,
                                 const Arguments& arguments,
                                 Budget* budget);

}  // namespace pagoda::engine::jinja
