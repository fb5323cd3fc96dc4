#include "kernels/cuda/collective/reduce_kernel.cuh"

namespace pagoda::kernels::cuda {

template absl::Status LaunchReduceOf<float>(const DeviceContext&,
                                            const ReduceLaunch&,
                                            const ReduceArgs&);

}  // namespace pagoda::kernels::cuda
