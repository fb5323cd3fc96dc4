#include "kernels/cuda/attention/decode_launch.cuh"

namespace pagoda::kernels::cuda {

template absl::Status LaunchDecodeInstance<__nv_bfloat16, 64>(const AttentionLaunch&, cudaStream_t);
template absl::Status LaunchDecodeInstance<__nv_bfloat16, 80>(const AttentionLaunch&, cudaStream_t);
template absl::Status LaunchDecodeInstance<__nv_bfloat16, 96>(const AttentionLaunch&, cudaStream_t);
template absl::Status LaunchDecodeInstance<__nv_bfloat16, 128>(const AttentionLaunch&,
                                                               cudaStream_t);
template absl::Status LaunchDecodeInstance<__nv_bfloat16, 256>(const AttentionLaunch&,
                                                               cudaStream_t);

}  // namespace pagoda::kernels::cuda
