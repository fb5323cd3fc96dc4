#include "kernels/cuda/attention/prefill_wgmma_launch.cuh"

namespace pagoda::kernels::cuda {

template absl::Status LaunchPrefillWgmmaInstance<__nv_bfloat16, 64>(const AttentionLaunch&,
                                                                    cudaStream_t);
template absl::Status LaunchPrefillWgmmaInstance<__nv_bfloat16, 128>(const AttentionLaunch&,
                                                                     cudaStream_t);
template absl::Status LaunchPrefillWgmmaInstance<__nv_bfloat16, 256>(const AttentionLaunch&,
                                                                     cudaStream_t);

}  // namespace pagoda::kernels::cuda
