#pragma once

#include "kernels/cuda/attention/instances.h"
#include "kernels/cuda/attention/prefill_mma_kernel.cuh"
#include "kernels/cuda/attention/prefill_params.h"
#include "kernels/cuda/launch.h"

namespace pagoda::kernels::cuda {

template <typename Traits>
absl::Status LaunchPrefillMma(const AttentionLaunch& launch, cudaStream_t stream) {
  return Launch({.kernel = "paged attention prefill (mma)",
                 .grid = dim3(launch.shape.prefill_grid),
                 .block = dim3(Traits::kThreads),
                 .shared_bytes = Traits::kSharedBytes,
                 .programmatic = launch.programmatic},
                stream,
                PrefillMmaKernel<Traits>,
                MakePrefillKernelParams(launch));
}

template <typename T, int kHeadDim>
absl::Status LaunchPrefillMmaInstance(const AttentionLaunch& launch, cudaStream_t stream) {
  return HasScoreExtras(MakeScoreParams(*launch.params))
             ? LaunchPrefillMma<PrefillMmaTraits<T, kHeadDim, true>>(launch, stream)
             : LaunchPrefillMma<PrefillMmaTraits<T, kHeadDim, false>>(launch, stream);
}

}  // namespace pagoda::kernels::cuda
