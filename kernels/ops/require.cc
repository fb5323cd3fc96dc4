#include "kernels/ops/require.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"

namespace pagoda::kernels {

absl::Status RequirePointer(absl::string_view field, const void* pointer) {
  if (pointer != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is null; expected an array"));
}

absl::Status RequireAtLeast(absl::string_view field, int64_t value, int64_t minimum) {
  if (value >= minimum) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, "; expected at least ", minimum));
}

absl::Status RequireBetween(absl::string_view field,
                            int64_t value,
                            int64_t minimum,
                            int64_t maximum) {
  if (value >= minimum && value <= maximum) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, "; expected ", minimum, " to ", maximum));
}

absl::Status RequireMultiple(absl::string_view field, int64_t value, int64_t divisor) {
  if (divisor > 0 && value % divisor == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, "; expected a multiple of ", divisor));
}

absl::Status RequireFinite(absl::string_view field, float value) {
  if (std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, "; expected a finite number"));
}

absl::Status RequireDType(absl::string_view field,
                          DType value,
                          std::initializer_list<DType> supported) {
  std::string names;
  for (const DType dtype : supported) {
    if (dtype == value) return absl::OkStatus();
    absl::StrAppend(&names, names.empty() ? "" : " or ", DTypeName(dtype));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", DTypeName(value), "; expected ", names));
}

absl::Status RequireActivation(absl::string_view field, DType value) {
  return RequireDType(field, value, {DType::kFloat32, DType::kBFloat16, DType::kFloat16});
}

}  // namespace pagoda::kernels
