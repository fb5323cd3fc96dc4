#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda::daemon {

// The keys that clients of the HTTP API may show. Immutable; thread-safe.
class ApiKeys {
 public:
  // One key a line; empty lines and lines that begin with # are skipped. INVALID_ARGUMENT, without
  // the key, for one that no header can carry, and for a text without any.
  static absl::StatusOr<ApiKeys> Parse(absl::string_view text);
  // Asks for none.
  ApiKeys() = default;

  bool empty() const { return keys_.empty(); }
  // Whether the value of an Authorization header shows one of the keys. How long it takes depends
  // on lengths alone.
  bool Accept(absl::string_view authorization) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace pagoda::daemon
