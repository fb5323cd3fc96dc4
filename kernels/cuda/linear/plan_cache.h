#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/linear/linear_plan.h"

namespace pagoda::kernels::cuda {

// Plans measured before, on disk: one text file for each make of device and version of cuBLASLt.
// Losing it costs a second at the next start, so no failure here is an error of an op.
class PlanCache {
 public:
  // The folder for caches: $XDG_CACHE_HOME/pagoda, else /var/cache/pagoda.
  static std::string DefaultFolder();

  PlanCache(absl::string_view folder, absl::string_view device_name, absl::string_view version);

  // What the file holds; empty without a file. Lines that this build does not understand are
  // skipped.
  LinearPlanTable Read() const;
  // Replaces the file as a whole, so that a reader never sees half of one.
  absl::Status Write(const LinearPlanTable& table) const;

  const std::string& path() const { return path_; }

 private:
  const std::string folder_;
  const std::string path_;
};

}  // namespace pagoda::kernels::cuda
