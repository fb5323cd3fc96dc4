#include <cstdint>

#include "kernels/cuda/primitives.cuh"
#include "kernels/cuda/small_copy.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr int kCopyThreads = 256;

// Past the caches: the host writes between launches.
template <typename Unit>
__device__ __forceinline__ Unit LoadHost(const Unit* p) {
  return __ldcv(p);
}

template <typename Unit, bool kFromHost>
__global__ void SmallCopyKernel(Unit* to, const Unit* from, unsigned count) {
  LaunchNext();
  const unsigned i = blockIdx.x * kCopyThreads + threadIdx.x;
  Unit value = {};
  if (kFromHost && i < count) value = LoadHost(from + i);
  WaitForPrevious();
  if (i >= count) return;
  to[i] = kFromHost ? value : from[i];
}

template <typename Unit, bool kFromHost>
absl::Status LaunchCopy(const DeviceContext& context, void* to, const void* from, size_t bytes) {
  const auto count = static_cast<unsigned>(bytes / sizeof(Unit));
  return Launch(context,
                {.kernel = "small_copy",
                 .grid = (count + kCopyThreads - 1) / kCopyThreads,
                 .block = kCopyThreads},
                SmallCopyKernel<Unit, kFromHost>,
                static_cast<Unit*>(to),
                static_cast<const Unit*>(from),
                count);
}

template <bool kFromHost>
absl::Status Copy(const DeviceContext& context, void* to, const void* from, size_t bytes) {
  const uintptr_t bits =
      reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes;
  if (bits % sizeof(uint4) == 0) return LaunchCopy<uint4, kFromHost>(context, to, from, bytes);
  return LaunchCopy<uint32_t, kFromHost>(context, to, from, bytes);
}

}  // namespace

bool IsSmallCopy(const void* to, const void* from, size_t bytes) {
  const uintptr_t bits =
      reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes;
  return bytes <= kMaxSmallCopyBytes && bits % sizeof(uint32_t) == 0;
}

absl::Status SmallCopyToDevice(const DeviceContext& context,
                               void* device,
                               const void* host,
                               size_t bytes) {
  return Copy</*kFromHost=*/true>(context, device, host, bytes);
}

absl::Status SmallCopyToHost(const DeviceContext& context,
                             void* host,
                             const void* device,
                             size_t bytes) {
  return Copy</*kFromHost=*/false>(context, host, device, bytes);
}

}  // namespace pagoda::kernels::cuda
