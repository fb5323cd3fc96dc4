#pragma once

#include "kernels/cuda/attention/decode_kernel.cuh"
#include "kernels/cuda/attention/instances.h"
#include "kernels/cuda/launch.h"

namespace pagoda::kernels::cuda {

inline DecodeKernelParams MakeDecodeKernelParams(const AttentionLaunch& launch) {
  const PagedAttentionParams& params = *launch.params;
  const AttentionPlanShape& shape = launch.shape;
  const AttentionPlanView plan = ViewAttentionPlan(shape, const_cast<void*>(launch.plan));
  const int64_t num_partial_rows = int64_t{2} * shape.decode_grid * shape.decode_rows_per_tile;
  float* partial_out = static_cast<float*>(launch.workspace);
  float2* partial_state =
      reinterpret_cast<float2*>(partial_out + num_partial_rows * params.cache.head_dim);
  return {.q = params.q,
          .q_stride = params.q_stride,
          .out = params.out,
          .num_q_heads = params.num_q_heads,
          .group_size = shape.group_size,
          .kv = MakeKvPages(params.cache, *params.batch),
          .score = MakeScoreParams(params),
          .tasks = plan.tasks,
          .seqs = plan.seqs,
          .partial_out = partial_out,
          .partial_state = partial_state,
          .tickets = reinterpret_cast<int32_t*>(partial_state + num_partial_rows)};
}

template <typename Traits>
absl::Status LaunchDecode(const AttentionLaunch& launch, cudaStream_t stream) {
  return Launch({.kernel = "paged attention decode",
                 .grid = dim3(launch.shape.decode_grid),
                 .block = dim3(Traits::kThreads),
                 .shared_bytes = Traits::kSharedBytes,
                 .programmatic = launch.programmatic},
                stream,
                DecodeKernel<Traits>,
                MakeDecodeKernelParams(launch));
}

template <typename T, int kHeadDim>
absl::Status LaunchDecodeInstance(const AttentionLaunch& launch, cudaStream_t stream) {
  constexpr int kStages = DecodeStages(kHeadDim);
  constexpr int kCtas = DecodeCtasPerMultiprocessor(kHeadDim);
  const bool extras = HasScoreExtras(MakeScoreParams(*launch.params));
  if constexpr (DecodeRowsPerTile(kHeadDim, INT32_MAX) == 16) {
    if (launch.shape.decode_rows_per_tile == 16) {
      return extras
                 ? LaunchDecode<DecodeTraits<T, kHeadDim, 2, kStages, kCtas, true>>(launch, stream)
                 : LaunchDecode<DecodeTraits<T, kHeadDim, 2, kStages, kCtas, false>>(launch,
                                                                                     stream);
    }
  }
  return extras ? LaunchDecode<DecodeTraits<T, kHeadDim, 1, kStages, kCtas, true>>(launch, stream)
                : LaunchDecode<DecodeTraits<T, kHeadDim, 1, kStages, kCtas, false>>(launch, stream);
}

}  // namespace pagoda::kernels::cuda
