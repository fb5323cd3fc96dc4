#pragma once

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/prefill_work.cuh"

namespace pagoda::kernels::cuda {

inline PrefillKernelParams MakePrefillKernelParams(const AttentionLaunch& launch) {
  const PagedAttentionParams& params = *launch.params;
  const AttentionPlanView plan = ViewAttentionPlan(launch.shape, const_cast<void*>(launch.plan));
  return {.q = params.q,
          .q_stride = params.q_stride,
          .out = params.out,
          .num_q_heads = params.num_q_heads,
          .group_size = launch.shape.group_size,
          .tokens_per_tile = launch.shape.prefill_tokens_per_tile(),
          .kv = MakeKvPages(params.cache, *params.batch),
          .score = MakeScoreParams(params),
          .header = plan.header,
          .tiles = plan.prefill_tiles};
}

}  // namespace pagoda::kernels::cuda
