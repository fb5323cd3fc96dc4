#include <algorithm>
#include <cstdint>

#include "kernels/cuda/copy_blocks.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/primitives.cuh"

namespace pagoda::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// Of a thread: enough loads in flight to hide a trip to memory.
constexpr int kUnitsPerThread = 4;

// A block of the grid has a part of one block of the pool in one layer.
template <typename Unit>
__global__ void CopyBlocksKernel(const __grid_constant__ CopyBlocksParams p) {
  LaunchNext();
  WaitForPrevious();
  const int64_t from = p.pairs[2 * blockIdx.y], to = p.pairs[2 * blockIdx.y + 1];
  if (from < 0 || from >= p.num_blocks || to < 0 || to >= p.num_blocks) return;
  const int64_t units = p.block_bytes / static_cast<int64_t>(sizeof(Unit));
  Unit* const layer = static_cast<Unit*>(p.data) + blockIdx.z * p.num_blocks * units;
  const Unit* const source = layer + from * units;
  Unit* const out = layer + to * units;
  const int64_t first = int64_t{blockIdx.x} * kThreads * kUnitsPerThread + threadIdx.x;
  Unit values[kUnitsPerThread];
#pragma unroll
  for (int i = 0; i < kUnitsPerThread; ++i) {
    if (first + i * kThreads < units) values[i] = source[first + i * kThreads];
  }
#pragma unroll
  for (int i = 0; i < kUnitsPerThread; ++i) {
    if (first + i * kThreads < units) out[first + i * kThreads] = values[i];
  }
}

template <typename Unit>
absl::Status LaunchCopyBlocks(const DeviceContext& context, const CopyBlocksParams& p) {
  constexpr int64_t kUnitsPerBlock = int64_t{kThreads} * kUnitsPerThread;
  const int64_t units = p.block_bytes / static_cast<int64_t>(sizeof(Unit));
  return Launch(context,
                {.kernel = "copy_blocks",
                 .grid = dim3(static_cast<unsigned>((units + kUnitsPerBlock - 1) / kUnitsPerBlock),
                              static_cast<unsigned>(p.count),
                              static_cast<unsigned>(p.num_layers)),
                 .block = kThreads},
                CopyBlocksKernel<Unit>,
                p);
}

}  // namespace

absl::Status CopyBlocks(const DeviceContext& context, const CopyBlocksParams& p) {
  if (p.count == 0) return absl::OkStatus();
  // The limit of two of a grid's dimensions is far above any number of sequences or layers.
  constexpr int64_t kMaxGrid = 65535;
  if (std::max(p.count, p.num_layers) > kMaxGrid) {
    return UnsupportedError("copy_blocks", "more than 65535 blocks or layers");
  }
  if (p.block_bytes % sizeof(uint4) == 0 &&
      reinterpret_cast<uintptr_t>(p.data) % sizeof(uint4) == 0) {
    return LaunchCopyBlocks<uint4>(context, p);
  }
  return LaunchCopyBlocks<uint16_t>(context, p);
}

}  // namespace pagoda::kernels::cuda
