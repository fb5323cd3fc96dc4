#include <algorithm>

#include "kernels/cuda/sample/sample_device.cuh"
#include "kernels/cuda/sample/sampler.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// Groups of a batch; a thread has the loads of one batch in flight.
constexpr int kUnroll = 2;

// Tokens 4 * group .. 4 * group + 3 of a row; -inf beyond the vocabulary.
__device__ __forceinline__ void LoadGroup(
    const float* row, bool aligned, int32_t vocab_size, int32_t group, float (&z)[kGroup]) {
  const int32_t first = group * kGroup;
  if (aligned && first + kGroup <= vocab_size) {
    const float4 v = LoadStream16(row + first);
    z[0] = v.x;
    z[1] = v.y;
    z[2] = v.z;
    z[3] = v.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i)
    z[i] = first + i < vocab_size ? __ldcg(row + first + i) : -INFINITY;
}

// What the best value of a row is at least, from the largest logit that a warp has met: no noise is
// below -log(-log(2^-24)) = -2.82. It spares the first tokens of a block their noise.
__device__ __forceinline__ void RaiseBound(float most, float temperature, uint32_t* block_best) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, offset));
  }
  if ((threadIdx.x & 31) == 0 && most <= FLT_MAX) {
    atomicMax(block_best, OrderedBits(most / temperature - 2.83f));
  }
}

// Block b works on part b % num_splits of row b / num_splits; the last block of a row to finish
// writes its token.
__global__ void __launch_bounds__(kThreads, 4)
    StreamKernel(const __grid_constant__ SampleParams p, SampleRowState* states, int num_splits) {
  __shared__ unsigned long long scratch[32];
  __shared__ uint32_t block_best;
  LaunchNext();
  if (threadIdx.x == 0) block_best = OrderedBits(-INFINITY);
  WaitForPrevious();
  const int64_t row_idx = blockIdx.x / num_splits;
  const SampleRow& row = p.row_params[row_idx];
  if (!IsStreamRow(row)) return;
  __syncthreads();

  const float* logits = p.logits + row_idx * p.logits_stride;
  const bool aligned = reinterpret_cast<uintptr_t>(logits) % 16 == 0;
  const int32_t num_groups = (p.vocab_size + kGroup - 1) / kGroup;
  const int32_t per_split = (num_groups + num_splits - 1) / num_splits;
  const int32_t begin = static_cast<int32_t>(blockIdx.x % num_splits) * per_split;
  const int32_t end = min(begin + per_split, num_groups);
  const bool greedy = row.temperature == 0.0f;
  const NoiseParams noise = {
      row.seed, row.position, row.temperature, 0.0f, greedy ? 0.0f : kLog2E / row.temperature};

  NoisyBest best;
  bool is_finite = true;  // no NaN, no +inf
  const auto meet = [&](const float(&z)[kGroup], int32_t group, float bound) {
    const float largest = GroupMax(z);
    is_finite &= largest <= FLT_MAX;
    if (!greedy) {
      MeetGroup(z, group, largest, noise, bound, &block_best, &best);
    } else if (largest > best.value) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if (z[i] > best.value) best = {z[i], group * kGroup + i};
      }
    }
  };
  // While one batch of groups is met, the next is on its way.
  constexpr int32_t kStride = kThreads * kUnroll;
  float next[kUnroll][kGroup];
  const auto load = [&](int32_t base) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int32_t group = base + u * kThreads;
      if (group < end) LoadGroup(logits, aligned, p.vocab_size, group, next[u]);
    }
  };
  int32_t base = begin + static_cast<int32_t>(threadIdx.x);
  load(base);
  if (!greedy) {
    float most = -INFINITY;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (base + u * kThreads < end) most = fmaxf(most, GroupMax(next[u]));
    }
    RaiseBound(most, row.temperature, &block_best);
  }
  for (; base < end; base += kStride) {
    float z[kUnroll][kGroup];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) z[u][i] = next[u][i];
    }
    load(base + kStride);
    const float bound = PruningBound(&block_best);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int32_t group = base + u * kThreads;
      if (group < end) meet(z[u], group, bound);
    }
  }
  const unsigned long long key = BlockMaxKey(is_finite ? best.Key() : kNanKey, scratch);
  if (threadIdx.x != 0) return;
  SampleRowState& state = states[row_idx];
  atomicMax(&state.best, key);
  __threadfence();  // the key before the count
  if (atomicAdd(&state.num_done, 1u) != static_cast<uint32_t>(num_splits) - 1) return;
  __threadfence();  // the count before others' keys
  const unsigned long long winner = atomicExch(&state.best, kNoKey);
  state.num_done = 0;
  // Infinite: every logit is -inf, or one is +inf.
  const bool valid = winner != kNanKey && winner != kNoKey && isfinite(KeyValue(winner));
  const int32_t token = valid ? KeyId(winner) : kNonFinite;
  p.tokens[row_idx] = token;
  if (row.slot >= 0 && row.slot < p.num_slots) p.last_tokens[row.slot] = token;
}

}  // namespace

absl::Status LaunchSampleStream(const DeviceContext& context,
                                const SampleParams& params,
                                SampleRowState* states) {
  // Enough blocks to fill the device once at four an SM (registers); few rows are cut into more
  // parts, of at least a load a thread.
  const int64_t num_groups = (params.vocab_size + kGroup - 1) / kGroup;
  const int64_t wanted = int64_t{context.num_sms} * 4 / params.rows;
  const int64_t most = std::max<int64_t>(num_groups / kThreads, 1);
  const auto num_splits =
      static_cast<int>(std::clamp<int64_t>(wanted, 1, std::min<int64_t>(most, 64)));
  return Launch(context,
                {.kernel = "sample_stream",
                 .grid = static_cast<unsigned>(params.rows * num_splits),
                 .block = kThreads},
                StreamKernel,
                params,
                states,
                num_splits);
}

}  // namespace pagoda::kernels::cuda
