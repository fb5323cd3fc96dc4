#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/server/rpc_error.h"

namespace pagoda::daemon {

// The values that a float field may take.
struct FloatRange {
  float low = 0.0f;
  float high = std::numeric_limits<float>::infinity();
  bool low_open = false;  // `low` itself is outside

  bool Contains(float value) const;
  // "[0, 1]", "(0, 10]", "[0, inf)".
  std::string ToString() const;
};

// Collects what is wrong with the fields of one request, so that a client is told all at once.
class FieldChecker {
 public:
  void Fail(absl::string_view field, absl::string_view description);
  // Each returns whether the value is good.
  bool CheckFloat(absl::string_view field, float value, const FloatRange& range);
  bool CheckInt(absl::string_view field, int64_t value, int64_t low, int64_t high);
  bool CheckCount(absl::string_view field, size_t count, size_t most);
  // The string is not empty and not longer than `most` bytes.
  bool CheckText(absl::string_view field, absl::string_view value, size_t most);
  // An id below num_ids.
  bool CheckTokenId(absl::string_view field, uint32_t id, int32_t num_ids);

  bool ok() const { return violations_.empty(); }
  // OK, or INVALID_ARGUMENT with everything collected.
  absl::Status ToStatus() const;

 private:
  std::vector<FieldViolation> violations_;
};

}  // namespace pagoda::daemon
