#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/base/dtype.h"
#include "kernels/cuda/device_context.h"

namespace pagoda::kernels::cuda {

// count elements of N(0, stddev), in rows of `width` (0: one row): element j of row i is number
// first_index + i * row_stride + j of the stream of `seed` (ops/normal.h).
struct NormalFill {
  void* data = nullptr;
  DType dtype = DType::kBFloat16;
  int64_t count = 0;
  float stddev = 0.02f;
  uint64_t seed = 0;
  uint64_t first_index = 0;
  int64_t width = 0;
  int64_t row_stride = 0;
};

absl::Status FillNormal(const DeviceContext& context, const NormalFill& fill);

// to[i] = from[i] for i < count, both on the device, rounded to nearest.
absl::Status ConvertElements(const DeviceContext& context,
                             DType from_dtype,
                             const void* from,
                             DType to_dtype,
                             void* to,
                             int64_t count);

}  // namespace pagoda::kernels::cuda
