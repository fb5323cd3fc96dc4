#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace pagoda::daemon {

struct ZipEntry {
  std::string name;  // flat: no folders
  std::string content;
};

// A zip file of these, deflated, without times: equal entries make equal bytes. REQUIRES: at most
// 65535 entries, and less than 4 GiB in all.
absl::StatusOr<std::string> MakeZip(const std::vector<ZipEntry>& entries);

}  // namespace pagoda::daemon
