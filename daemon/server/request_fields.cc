#include "daemon/server/request_fields.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace pagoda::daemon {
namespace {

// A request with a million wrong ids is told of the first few.
constexpr size_t kMaxCollected = 16;

}  // namespace

bool FloatRange::Contains(float value) const {
  // False for NaN. Infinity is never a value, only a missing bound.
  return std::isfinite(value) && (low_open ? value > low : value >= low) && value <= high;
}

std::string FloatRange::ToString() const {
  return absl::StrCat(
      low_open ? "(" : "[", low, ", ", std::isinf(high) ? "inf)" : absl::StrCat(high, "]"));
}

void FieldChecker::Fail(absl::string_view field, absl::string_view description) {
  if (violations_.size() < kMaxCollected)
    violations_.push_back({std::string(field), std::string(description)});
}

bool FieldChecker::CheckFloat(absl::string_view field, float value, const FloatRange& range) {
  if (range.Contains(value)) return true;
  Fail(field, absl::StrCat(value, " is outside ", range.ToString()));
  return false;
}

bool FieldChecker::CheckInt(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return true;
  Fail(field, absl::StrCat(value, " is outside [", low, ", ", high, "]"));
  return false;
}

bool FieldChecker::CheckCount(absl::string_view field, size_t count, size_t most) {
  if (count <= most) return true;
  Fail(field, absl::StrCat("has ", count, " entries; the limit is ", most));
  return false;
}

bool FieldChecker::CheckText(absl::string_view field, absl::string_view value, size_t most) {
  if (value.empty()) {
    Fail(field, "must not be empty");
    return false;
  }
  if (value.size() <= most) return true;
  Fail(field, absl::StrCat("has ", value.size(), " bytes; the limit is ", most));
  return false;
}

bool FieldChecker::CheckTokenId(absl::string_view field, uint32_t id, int32_t num_ids) {
  if (id < static_cast<uint32_t>(num_ids)) return true;
  Fail(field, absl::StrCat("token id ", id, " is outside the vocabulary of ", num_ids));
  return false;
}

absl::Status FieldChecker::ToStatus() const {
  return ok() ? absl::OkStatus() : InvalidFieldsError(violations_);
}

}  // namespace pagoda::daemon
