#include "kernels/cuda/collective/reduce.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace pagoda::kernels::cuda {

absl::Status LaunchReduce(const DeviceContext& context,
                          const ReduceLaunch& launch,
                          const ReduceArgs& args) {
  if (launch.dtype == DType::kBFloat16) {
    return LaunchReduceOf<__nv_bfloat16>(context, launch, args);
  }
  if (launch.dtype == DType::kFloat16) return LaunchReduceOf<__half>(context, launch, args);
  return LaunchReduceOf<float>(context, launch, args);
}

}  // namespace pagoda::kernels::cuda
