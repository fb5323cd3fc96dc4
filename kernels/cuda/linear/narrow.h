#pragma once

#include "absl/status/status.h"
#include "kernels/base/dtype.h"
#include "kernels/cuda/device_context.h"
#include "kernels/cuda/linear/gemm_args.h"

namespace pagoda::kernels::cuda {

// Products with few rows of x on mma.sync. A block keeps its part of x in shared memory and streams
// tiles of 16 rows of the weight past it, whole rows at a time, through a ring that is filled
// before the dependency wait; its warps divide k, and add up at the end of a tile. Where x is too
// large, k is also divided among the blocks of a cluster.
inline constexpr int kMaxNarrowRows = 16;

struct NarrowConfig {
  int chunk = 512;  // k of a stage: 256, 512 or 1024
  int split = 1;    // blocks of a cluster: 1, 2, 4 or 8
};

// Whether the shape and alignment allow it.
bool NarrowFits(const DeviceContext& context, const NarrowConfig& config, const GemmArgs& args);

// REQUIRES: the config fits.
absl::Status LaunchNarrow(const DeviceContext& context,
                          const NarrowConfig& config,
                          DType dtype,
                          const GemmArgs& args);

}  // namespace pagoda::kernels::cuda
