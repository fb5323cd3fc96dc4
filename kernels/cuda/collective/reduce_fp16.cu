#include "kernels/cuda/collective/reduce_kernel.cuh"

namespace pagoda::kernels::cuda {

template absl::Status LaunchReduceOf<fp16>(const DeviceContext&,
                                           const ReduceLaunch&,
                                           const ReduceArgs&);

}  // namespace pagoda::kernels::cuda
