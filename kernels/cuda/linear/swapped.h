#pragma once

#include "absl/status/status.h"
#include "kernels/base/dtype.h"
#include "kernels/cuda/device_context.h"
#include "kernels/cuda/linear/gemm_args.h"

namespace pagoda::kernels::cuda {

// Products of a weight with 1 to 64 rows on wgmma with operands swapped: rows of the weight fill
// its 64 rows, rows of x its 8 to 64 columns. Both come through the tensor copy engine; the stages
// of the weight are filled before the dependency wait. A tile of the weight may be divided over k
// among the blocks of a cluster, which add up through each other's shared memory, so that narrow
// weights too keep all of the memory busy.
inline constexpr int kMaxSwappedRows = 64;

struct SwappedConfig {
  int tile_rows = 256;    // of the weight: 128 or 256
  int split = 1;          // blocks of a cluster: 1, 2, 4 or 8
  int blocks_per_sm = 1;  // shared memory for 1 or 2; two need tiles of 128 rows (registers)
};

// Whether the shape and alignment allow it.
bool SwappedFits(const DeviceContext& context, const SwappedConfig& config, const GemmArgs& args);

// Whether the config occupies most of the device, and no block waits for another to leave.
bool SwappedIsBalanced(const DeviceContext& context,
                       const SwappedConfig& config,
                       const GemmArgs& args);

// REQUIRES: the config fits.
absl::Status LaunchSwapped(const DeviceContext& context,
                           const SwappedConfig& config,
                           DType dtype,
                           const GemmArgs& args);

}  // namespace pagoda::kernels::cuda
