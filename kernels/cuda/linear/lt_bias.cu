#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/linear/lt_gemm.h"
#include "kernels/cuda/primitives.cuh"

namespace pagoda::kernels::cuda {
namespace {

template <typename T>
__global__ void ConvertBiasKernel(const float* src, T* dst, int32_t n) {
  LaunchNext();
  WaitForPrevious();  // the product before may still read dst
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) dst[i] = FromFloat<T>(src[i]);
}

}  // namespace

absl::Status ConvertBias(
    const DeviceContext& context, DType dtype, const float* src, void* dst, int32_t n) {
  return DispatchDType(dtype, "linear", [&]<typename T>() {
    constexpr int kThreads = 256;
    const auto blocks = static_cast<unsigned>((n + kThreads - 1) / kThreads);
    return Launch(context,
                  {.kernel = "convert_bias", .grid = blocks, .block = kThreads},
                  ConvertBiasKernel<T>,
                  src,
                  static_cast<T*>(dst),
                  n);
  });
}

}  // namespace pagoda::kernels::cuda
