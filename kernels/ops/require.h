#pragma once

#include <cstdint>
#include <initializer_list>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/base/dtype.h"

// What the Validate functions are made of. Every message names the field, its value and what was
// expected.

namespace pagoda::kernels {

absl::Status RequirePointer(absl::string_view field, const void* pointer);
absl::Status RequireAtLeast(absl::string_view field, int64_t value, int64_t minimum);
// minimum <= value <= maximum.
absl::Status RequireBetween(absl::string_view field,
                            int64_t value,
                            int64_t minimum,
                            int64_t maximum);
absl::Status RequireMultiple(absl::string_view field, int64_t value, int64_t divisor);
absl::Status RequireFinite(absl::string_view field, float value);
absl::Status RequireDType(absl::string_view field,
                          DType value,
                          std::initializer_list<DType> supported);
// A type in which activations are held: float32, bfloat16 or float16.
absl::Status RequireActivation(absl::string_view field, DType value);

}  // namespace pagoda::kernels
