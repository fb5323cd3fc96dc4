#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/jinja/call.h"

namespace pagoda::engine::jinja {

bool IsPredicate(absl::string_view name);

// value is name(arguments). REQUIRES: IsPredicate(name).
absl::StatusOr<bool> ApplyPredicate(absl::string_view name,
                                    const Value& value,
                                    const Arguments& arguments,
                                    Budget* budget);

// item in container.
absl::StatusOr<bool> Contains(const Value& container, const Value& item, Budget* budget);

}  // namespace pagoda::engine::jinja
