#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "kernels/cuda/device_context.h"

namespace pagoda::kernels::cuda {

// What a step brings and takes is a few KB, and a copy engine needs several microseconds to begin,
// between which the device idles. A kernel that reads or writes pinned memory over the bus does
// not: it is let in early like any other, and has read the host's side before its turn comes.
inline constexpr size_t kMaxSmallCopyBytes = size_t{64} << 10;

// Whether the copies below take it: small, in whole words.
bool IsSmallCopy(const void* to, const void* from, size_t bytes);
// REQUIRES: IsSmallCopy; the host's side is pinned; nothing is being recorded.
absl::Status SmallCopyToDevice(const DeviceContext& context,
                               void* device,
                               const void* host,
                               size_t bytes);
absl::Status SmallCopyToHost(const DeviceContext& context,
                             void* host,
                             const void* device,
                             size_t bytes);

}  // namespace pagoda::kernels::cuda
