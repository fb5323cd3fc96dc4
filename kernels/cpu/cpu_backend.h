#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace pagoda::kernels {

// The backend that is built in. Ops run on the calling thread and the threads of one pool, and have
// run when a call returns.
absl::StatusOr<std::unique_ptr<Backend>> OpenCpuBackend(const BackendOptions& options);

}  // namespace pagoda::kernels
