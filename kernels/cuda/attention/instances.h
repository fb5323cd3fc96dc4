#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "kernels/cuda/attention/attention.h"

// One specialisation a type and head size, defined in instantiations/.

namespace pagoda::kernels::cuda {

// Rows of the decode MMA tile: the fewest that hold a group, as far as registers allow.
constexpr int32_t DecodeRowsPerTile(int32_t head_dim, int32_t group_size) {
  return group_size <= 8 || head_dim > 128 ? 8 : 16;
}

// Thread blocks a multiprocessor holds, and stages of 64 tokens in each block's ring: as many bytes
// as fit.
constexpr int32_t DecodeCtasPerMultiprocessor(int32_t head_dim) { return head_dim <= 128 ? 2 : 1; }
constexpr int32_t DecodeStages(int32_t head_dim) {
  switch (head_dim) {
    case 64:
      return 6;
    case 80:
      return 5;
    case 96:
      return 4;
    default:
      return 3;
  }
}

inline constexpr int32_t kPrefillRowsPerTile = 128;
constexpr bool HasWgmmaPrefill(int32_t head_dim) {
  return head_dim == 64 || head_dim == 128 || head_dim == 256;
}

template <typename T, int kHeadDim>
absl::Status LaunchDecodeInstance(const AttentionLaunch& launch, cudaStream_t stream);

template <typename T, int kHeadDim>
absl::Status LaunchPrefillMmaInstance(const AttentionLaunch& launch, cudaStream_t stream);

template <typename T, int kHeadDim>
absl::Status LaunchPrefillWgmmaInstance(const AttentionLaunch& launch, cudaStream_t stream);

}  // namespace pagoda::kernels::cuda
