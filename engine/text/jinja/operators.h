#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/jinja/call.h"

namespace pagoda::engine::jinja {

// + - on one operand.
absl::StatusOr<Value> UnaryOperator(absl::string_view op, const Value& operand);
// + - * / // % ** ~, with Python's rules; integers that leave 64 bits are an error.
absl::StatusOr<Value> BinaryOperator(absl::string_view op,
                                     const Value& left,
                                     const Value& right,
                                     Budget* budget);
// == != < <= > >= in, not in.
absl::StatusOr<bool> ComparisonOperator(absl::string_view op,
                                        const Value& left,
                                        const Value& right,
                                        Budget* budget);
// object[begin:end:step] of a string or list; parts that are none are absent.
absl::StatusOr<Value> Slice(
    const Value& object, const Value& begin, const Value& end, const Value& step, Budget* budget);
// range(end), range(begin, end), range(begin, end, step).
absl::StatusOr<Value> Range(const Arguments& arguments, Budget* budget);

}  // namespace pagoda::engine::jinja
