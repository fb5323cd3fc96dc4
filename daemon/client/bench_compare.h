#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace pagoda::daemon {

// Two reports of `pagoda bench --json`, the texts of their files, as a table: figure, first,
// second, change. Lines above it say in what their loads differ. INVALID_ARGUMENT names the file
// that is no such report.
absl::StatusOr<std::string> CompareReports(const std::string& first_file,
                                           const std::string& first,
                                           const std::string& second_file,
                                           const std::string& second);

}  // namespace pagoda::daemon
