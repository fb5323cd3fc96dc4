#include "kernels/cuda/attention/decode_launch.cuh"

namespace pagoda::kernels::cuda {

template absl::Status LaunchDecodeInstance<__half, 64>(const AttentionLaunch&, cudaStream_t);
template absl::Status LaunchDecodeInstance<__half, 80>(const AttentionLaunch&, cudaStream_t);
template absl::Status LaunchDecodeInstance<__half, 96>(const AttentionLaunch&, cudaStream_t);
template absl::Status LaunchDecodeInstance<__half, 128>(const AttentionLaunch&, cudaStream_t);
template absl::Status LaunchDecodeInstance<__half, 256>(const AttentionLaunch&, cudaStream_t);

}  // namespace pagoda::kernels::cuda
