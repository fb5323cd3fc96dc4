#pragma once

#include <cstdint>
#include <cublasLt.h>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/device_error.h"

namespace pagoda::kernels::cuda {

// The failures of the cuda backend, one constructor each.

// OK, or INTERNAL naming the call, what it was about and the library's reason.
absl::Status CublasStatus(cublasStatus_t error, absl::string_view call, absl::string_view detail);
// A failure of the device as the caller of the backend sees it: its op and device are named. The
// context is lost: the worker must end.
absl::Status AtPlace(const absl::Status& status, absl::string_view op, absl::string_view device);

// A combination that no kernel of the module covers.
absl::Status UnsupportedError(absl::string_view op, absl::string_view what);
// A call that cannot be recorded into a graph.
absl::Status NotWhileRecordingError(absl::string_view call);

}  // namespace pagoda::kernels::cuda
