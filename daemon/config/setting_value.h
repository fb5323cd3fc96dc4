#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda::daemon {

// Values as people write them. Errors are INVALID_ARGUMENT and begin with "expected ".

// "256", "32k" (32,000), "32K" (32,768), "1.5m". Whole after scaling.
absl::StatusOr<uint64_t> ParseCount(absl::string_view text);
// "1073741824", "2GiB", "512MB" (of 1,000), "1.5G" (as GiB).
absl::StatusOr<uint64_t> ParseBytes(absl::string_view text);
// Milliseconds: "30" and "30s", "500ms", "2m", "1h".
absl::StatusOr<uint64_t> ParseMilliseconds(absl::string_view text);
absl::StatusOr<double> ParseReal(absl::string_view text);
// true, yes, on, 1 and their opposites.
absl::StatusOr<bool> ParseSwitch(absl::string_view text);

// The shortest text that the parser above reads back exactly.
std::string FormatByteCount(uint64_t bytes);
std::string FormatMilliseconds(uint64_t milliseconds);
std::string FormatReal(double value);

}  // namespace pagoda::daemon
