#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/cuda_error.h"

// Stands in for launchers of kernels/cuda/attention that are not there yet.

namespace pagoda::kernels::cuda {

absl::Status LaunchPagedAttentionPrefill(const AttentionLaunch&, cudaStream_t) {
  return UnsupportedError("paged_attention", "prefill is not built");
}

absl::Status LaunchRopeKvWrite(const RopeKvWriteParams&, bool, cudaStream_t) {
  return UnsupportedError("rope_kv_write", "not built");
}

}  // namespace pagoda::kernels::cuda
