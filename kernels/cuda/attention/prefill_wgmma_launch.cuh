#pragma once

#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/attention/instances.h"
#include "kernels/cuda/attention/prefill_params.h"
#include "kernels/cuda/attention/prefill_wgmma_kernel.cuh"
#include "kernels/cuda/attention/tensor_map.h"
#include "kernels/cuda/launch.h"

namespace pagoda::kernels::cuda {

template <typename Traits>
absl::Status LaunchPrefillWgmma(const AttentionLaunch& launch, cudaStream_t stream) {
  const KvCacheView& cache = launch.params->cache;
  const PrefillKernelParams params = MakePrefillKernelParams(launch);
  const int32_t box_tokens = std::min(cache.block_size, 64);
  int32_t box_tokens_log2 = 0;
  while ((1 << box_tokens_log2) < box_tokens) ++box_tokens_log2;
  const prefill_wgmma::PoolRows rows = {
      .per_block = static_cast<int32_t>(cache.block_stride / Traits::kDim),
      .per_head = static_cast<int32_t>(cache.head_stride / Traits::kDim),
      .to_values = static_cast<int32_t>(cache.v_offset / Traits::kDim),
      .box_tokens_log2 = box_tokens_log2};
  PAGODA_ASSIGN_OR_RETURN(const CUtensorMap map, MakeKvTensorMap(cache, box_tokens));
  return Launch({.kernel = "paged attention prefill (wgmma)",
                 .grid = dim3(launch.shape.prefill_grid),
                 .block = dim3(Traits::kThreads),
                 .shared_bytes = Traits::kSharedBytes,
                 .programmatic = launch.programmatic},
                stream,
                PrefillWgmmaKernel<Traits>,
                params,
                map,
                rows);
}

template <typename T, int kHeadDim>
absl::Status LaunchPrefillWgmmaInstance(const AttentionLaunch& launch, cudaStream_t stream) {
  return HasScoreExtras(MakeScoreParams(*launch.params))
             ? LaunchPrefillWgmma<PrefillWgmmaTraits<T, kHeadDim, true>>(launch, stream)
             : LaunchPrefillWgmma<PrefillWgmmaTraits<T, kHeadDim, false>>(launch, stream);
}

}  // namespace pagoda::kernels::cuda
