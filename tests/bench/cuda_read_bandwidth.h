#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>

#include "absl/status/status.h"

namespace pagoda::kernels::cuda {

// Reads `size_bytes` (a multiple of 16) once, at the speed of memory: the floor of whatever reads
// as much.
absl::Status LaunchReadAll(const void* data, size_t size_bytes, void* sink, cudaStream_t stream);

}  // namespace pagoda::kernels::cuda
