#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/linear/linear_tuner.h"
#include "kernels/cuda/primitives.cuh"

namespace pagoda::kernels::cuda {
namespace {

// Order of non-negative floats is the order of their bits.
__device__ void RaiseTo(float* out, float value) {
  if (isnan(value)) value = INFINITY;
  atomicMax(reinterpret_cast<unsigned*>(out), __float_as_uint(fabsf(value)));
}

template <typename T>
__global__ void MaxDifferenceKernel(const T* a, const T* b, int64_t count, float* out) {
  float difference = 0.0f, largest = 0.0f;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const float x = ToFloat(a[i]), y = ToFloat(b[i]);
    const float d = fabsf(x - y);
    difference = isnan(d) ? INFINITY : fmaxf(difference, d);
    largest = fmaxf(largest, fabsf(y));
    if (isinf(difference)) break;
  }
  RaiseTo(out, difference);
  RaiseTo(out + 1, largest);
}

template <typename T>
absl::Status LaunchCompare(
    const DeviceContext& context, const void* a, const void* b, int64_t count, float* out) {
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>((count + 255) / 256, int64_t{context.num_sms} * 8));
  return Launch({.kernel = "max_difference", .grid = blocks, .block = 256},
                context.stream,
                MaxDifferenceKernel<T>,
                static_cast<const T*>(a),
                static_cast<const T*>(b),
                count,
                out);
}

}  // namespace

absl::Status MaxDifference(const DeviceContext& context,
                           DType dtype,
                           const void* a,
                           const void* b,
                           int64_t count,
                           float* out) {
  PAGODA_RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(out, 0, 2 * sizeof(float), context.stream),
                                    "cudaMemsetAsync",
                                    "max_difference"));
  if (dtype == DType::kFloat32) return LaunchCompare<float>(context, a, b, count, out);
  if (dtype == DType::kBFloat16) return LaunchCompare<bf16>(context, a, b, count, out);
  return LaunchCompare<fp16>(context, a, b, count, out);
}

}  // namespace pagoda::kernels::cuda
