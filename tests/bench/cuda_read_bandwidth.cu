#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/primitives.cuh"
#include "tests/bench/cuda_read_bandwidth.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kUnroll = 4;

__global__ void ReadAllKernel(const uint4* data, int64_t count, uint32_t* sink) {
  uint32_t sum = 0;
  const int64_t step = int64_t{gridDim.x} * kThreads * kUnroll;
  for (int64_t i = int64_t{blockIdx.x} * kThreads * kUnroll + threadIdx.x; i < count; i += step) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = i + u * kThreads;
      v[u] = at < count ? LoadWeights16(data + at) : uint4{};
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  if (sum == 0x12345678u) *sink = sum;  // keeps the loads
}

}  // namespace

absl::Status LaunchReadAll(const void* data, size_t size_bytes, void* sink, cudaStream_t stream) {
  return Launch({.kernel = "read_all", .grid = 132 * 8, .block = kThreads},
                stream,
                ReadAllKernel,
                static_cast<const uint4*>(data),
                static_cast<int64_t>(size_bytes / 16),
                static_cast<uint32_t*>(sink));
}

}  // namespace pagoda::kernels::cuda
