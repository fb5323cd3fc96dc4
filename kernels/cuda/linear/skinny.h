#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/base/dtype.h"
#include "kernels/cuda/device_context.h"
#include "kernels/cuda/linear/gemm_args.h"

namespace pagoda::kernels::cuda {

// Products of a weight with 5 to 64 rows (1 to 4 also run), on tensor cores with the weight as the
// tall operand: weights fill the 16 rows of an MMA tile and the rows of x its 8 columns, so that no
// tile is padded to 64 or 128 rows of x.
inline constexpr int kMaxSkinnyRows = 64;

struct SkinnyConfig {
  int stages = 4;         // of the ring of k chunks: 4 or 6
  int blocks_per_sm = 1;  // 1 or 2
};

// Memory where blocks that share an output tile leave their partial sums. Counters hold zeros
// between launches.
struct SkinnyWorkspace {
  float* partials = nullptr;
  uint32_t* counters = nullptr;
  size_t partials_bytes = 0;
  int max_tiles = 0;
};

// Bytes of partials that any shape may need on a device with `num_sms` multiprocessors.
size_t SkinnyPartialsBytes(int num_sms);

bool SkinnyFits(const DeviceContext& context,
                const SkinnyWorkspace& workspace,
                const SkinnyConfig& config,
                const GemmArgs& args);

// REQUIRES: 1 <= args.m <= kMaxSkinnyRows, no input transform, and the config fits.
absl::Status LaunchSkinny(const DeviceContext& context,
                          const SkinnyWorkspace& workspace,
                          const SkinnyConfig& config,
                          DType dtype,
                          const GemmArgs& args);

}  // namespace pagoda::kernels::cuda
