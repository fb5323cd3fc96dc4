#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/base/dtype.h"
#include "kernels/cuda/device_context.h"
#include "kernels/cuda/linear/gemm_args.h"

namespace pagoda::kernels::cuda {

// Products of a weight with one to four rows, without tensor cores: a stream of the weight at the
// speed of memory.
inline constexpr int kMaxGemvRows = 4;

// Loads straight into registers: a warp computes `rows` outputs with `depth` 16-byte loads a lane
// in flight for each. Blocks of eight warps.
struct GemvConfig {
  int rows = 1;   // 1 or 2
  int depth = 4;  // 4 or 8
};

// Loads through the bulk copy engine: persistent blocks, each warp with its own ring of 2 KB stages
// in shared memory, filled before the dependency wait. Two kernels fit on an SM side by side while
// the ring and x stay below half of its shared memory, so that the memory never idles between them.
struct GemvRingConfig {
  int warps = 8;   // of a block: 4, 8 or 16
  int stages = 4;  // of a warp's ring, in pairs of rows when m > 1
  int blocks_per_sm = 1;
};

// Whether the shape and alignment allow it and its shared memory is there.
bool GemvFits(const DeviceContext& context, const GemvConfig& config, const GemmArgs& args);
bool GemvRingFits(const DeviceContext& context, const GemvRingConfig& config, const GemmArgs& args);

// REQUIRES: 1 <= args.m <= kMaxGemvRows and the config fits.
absl::Status LaunchGemv(const DeviceContext& context,
                        const GemvConfig& config,
                        DType dtype,
                        const GemmArgs& args);
absl::Status LaunchGemvRing(const DeviceContext& context,
                            const GemvRingConfig& config,
                            DType dtype,
                            const GemmArgs& args);

}  // namespace pagoda::kernels::cuda
