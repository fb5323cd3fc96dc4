#include "kernels/cuda/attention/prefill_wgmma_launch.cuh"

namespace pagoda::kernels::cuda {

template absl::Status LaunchPrefillWgmmaInstance<__half, 64>(const AttentionLaunch&, cudaStream_t);
template absl::Status LaunchPrefillWgmmaInstance<__half, 128>(const AttentionLaunch&, cudaStream_t);
template absl::Status LaunchPrefillWgmmaInstance<__half, 256>(const AttentionLaunch&, cudaStream_t);

}  // namespace pagoda::kernels::cuda
