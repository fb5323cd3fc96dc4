#pragma once

#include <cstdint>

#include "kernels/cuda/attention/device.cuh"
#include "kernels/cuda/attention/paged_attention_classic.h"

// One thread block computes one query head's attention over the context (or one partition of it) in
// four steps:
//
//   1. scores   Each warp takes every kWarps-th block of the cache. In it a *thread group* of
//   kGroup threads shares a
//               token: thread j of the group reads the j-th part of every 16-byte vector of the
//               key, multiplies it with the same part of the query (in shared memory) and the group
//               adds up its sums by shuffles. Groups of a warp take neighbouring tokens, so that
//               the warp reads 16-byte vectors of one [slot][x] row together.
//   2. softmax  Maximum and sum over the scores in shared memory, within warps by shuffles, between
//   warps through
//               shared memory.
//   3. values   A thread takes 8 neighbouring slots of one row (one d) of V at a time; kVectors
//   threads share a row.
//               Each holds the sums of rows_per_thread rows.
//   4. reduce   Over the threads of a row by shuffles, over warps in halves through shared memory.
//
// Query heads of a group read the same keys: kv_head = head / group_size; nothing is expanded.

namespace pagoda::kernels::cuda::classic {

inline constexpr int kThreads = 128;
inline constexpr int kWarps = kThreads / 32;
// Elements of a 16-byte vector: the x of the layout.
inline constexpr int kX = 8;

struct KernelParams {
  ClassicAttentionParams op;
  // Version 2: parts of [num_seqs, num_q_heads, max_partitions]; outputs in the cache's type as the
  // original keeps them.
  void* part_out = nullptr;
  float* part_max = nullptr;
  float* part_sum = nullptr;
  int32_t max_partitions = 1;
};

// The result for all threads of a block, by shuffles within warps, then through shared memory.
struct Maximum {
  static constexpr float kNeutral = -INFINITY;
  static __device__ float Of(float a, float b) { return fmaxf(a, b); }
};
struct Sum {
  static constexpr float kNeutral = 0.0f;
  static __device__ float Of(float a, float b) { return a + b; }
};

template <typename Op>
__device__ float ReduceBlock(float x, float* shared) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int mask = 16; mask >= 1; mask /= 2) x = Op::Of(x, __shfl_xor_sync(0xffffffff, x, mask));
  __syncthreads();  // an earlier reduction may still be read
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  x = lane < kWarps ? shared[lane] : Op::kNeutral;
#pragma unroll
  for (int mask = kWarps / 2; mask >= 1; mask /= 2) {
    x = Op::Of(x, __shfl_xor_sync(0xffffffff, x, mask));
  }
  return __shfl_sync(0xffffffff, x, 0);
}

// The dot product of the query's and a key's parts that this thread of the group holds, summed over
// the group.
template <typename T, int kHeadDim, int kGroup>
__device__ float GroupDot(const float* q, const T* k, int64_t vector_stride, int group_lane) {
  constexpr int kPart = kX / kGroup;  // elements of each 16-byte vector that one thread reads
  float sum = 0.0f;
#pragma unroll 8
  for (int vector = 0; vector < kHeadDim / kX; ++vector) {
    alignas(kPart * sizeof(T)) T part[kPart];
    struct alignas(kPart * sizeof(T)) Bits {
      char bytes[kPart * sizeof(T)];
    };
    *reinterpret_cast<Bits*>(part) =
        *reinterpret_cast<const Bits*>(k + vector * vector_stride + group_lane * kPart);
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      sum += q[vector * kX + group_lane * kPart + i] * Number<T>::ToFloat(part[i]);
    }
  }
#pragma unroll
  for (int mask = kGroup / 2; mask >= 1; mask /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, mask);
  }
  return sum;
}

// kPartitionTokens 0: version 1.
template <typename T, int kHeadDim, int kBlockSize, int kPartitionTokens>
__global__ void __launch_bounds__(kThreads, kHeadDim > 128 ? 2 : 4)
    AttentionKernel(const __grid_constant__ KernelParams p) {
  constexpr int kGroup = kBlockSize < 32 ? 32 / kBlockSize : 1;
  constexpr int kGroupsPerWarp = 32 / kGroup;
  constexpr int kTokensPerGroup = (kBlockSize + kGroupsPerWarp - 1) / kGroupsPerWarp;
  const ClassicAttentionParams& op = p.op;
  const int head = blockIdx.x;
  const int seq = blockIdx.y;
  const int partition = blockIdx.z;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;

  const int context_len = op.context_lens[seq];
  const int begin = partition * kPartitionTokens;
  if (begin >= context_len) return;
  const int end = kPartitionTokens > 0 ? min(begin + kPartitionTokens, context_len) : context_len;
  const int block_begin = begin / kBlockSize;
  const int block_end = (end + kBlockSize - 1) / kBlockSize;

  const int kv_head = head / (op.num_q_heads / op.cache.num_kv_heads);
  const float slope = op.alibi_slopes == nullptr ? 0.0f : op.alibi_slopes[head];
  const int32_t* table = op.block_tables + seq * op.block_table_stride;
  const int64_t head_elements = int64_t{kHeadDim} * kBlockSize;
  const auto block_offset = [&](int block) {
    const int last = static_cast<int>(op.cache.num_blocks) - 1;
    const int64_t id = min(max(table[block], 0), last);
    return (id * op.cache.num_kv_heads + kv_head) * head_elements;
  };

  // Scores of [begin, end), later the outputs of half the warps.
  extern __shared__ float scores[];
  __shared__ float query[kHeadDim];
  __shared__ float reduce[kWarps];
  const T* q = static_cast<const T*>(op.q) + seq * op.q_stride + head * kHeadDim;
  const float scale = op.scale * op.cache.k_scale;
  for (int i = threadIdx.x; i < kHeadDim; i += kThreads)
    query[i] = Number<T>::ToFloat(q[i]) * scale;
  __syncthreads();

  // 1. Scores.
  float high = -INFINITY;
  const int group = lane / kGroup;
  for (int block = block_begin + warp; block < block_end; block += kWarps) {
    const T* keys = static_cast<const T*>(op.cache.k) + block_offset(block);
    for (int i = 0; i < kTokensPerGroup; ++i) {
      const int slot = group + i * kGroupsPerWarp;
      const int token = block * kBlockSize + slot;
      // Whole groups agree, but all lanes must take part in the shuffles.
      float score =
          GroupDot<T, kHeadDim, kGroup>(query, keys + slot * kX, kBlockSize * kX, lane % kGroup);
      score += slope * static_cast<float>(token - context_len + 1);
      if (token >= begin && token < end) {
        if (lane % kGroup == 0) scores[token - begin] = score;
        high = fmaxf(high, score);
      }
    }
  }

  // 2. Softmax.
  high = ReduceBlock<Maximum>(high, reduce);
  float sum = 0.0f;
  for (int i = threadIdx.x; i < end - begin; i += kThreads) {
    const float weight = Exp2((scores[i] - high) * kLog2E);
    scores[i] = weight;
    sum += weight;
  }
  sum = ReduceBlock<Sum>(sum, reduce);  // its barriers also publish the weights

  // 3. Values.
  constexpr int kVectors = kBlockSize / kX;    // threads that share a row of a block
  constexpr int kRowsPerPass = 32 / kVectors;  // rows a warp reads at once
  constexpr int kPasses = (kHeadDim + kRowsPerPass - 1) / kRowsPerPass;
  static_assert(kVectors <= 32);
  float out[kPasses] = {};
  const int slot = lane % kVectors * kX;
  for (int block = block_begin + warp; block < block_end; block += kWarps) {
    const T* values = static_cast<const T*>(op.cache.v) + block_offset(block);
    const int token = block * kBlockSize + slot;
    float weights[kX];
#pragma unroll
    for (int i = 0; i < kX; ++i) weights[i] = token + i < end ? scores[token + i - begin] : 0.0f;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = pass * kRowsPerPass + lane / kVectors;
      if (row >= kHeadDim) continue;
      const uint4 bits = *reinterpret_cast<const uint4*>(values + row * kBlockSize + slot);
      const T* v = reinterpret_cast<const T*>(&bits);
#pragma unroll
      for (int i = 0; i < kX; ++i) {
        // Slots beyond the context may hold anything: 0 * NaN is NaN.
        if (token + i < end) out[pass] += weights[i] * Number<T>::ToFloat(v[i]);
      }
    }
  }

  // 4. Reduce: over the threads of a row, then the upper half of the warps onto the lower until one
  // is left.
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
    for (int mask = kVectors / 2; mask >= 1; mask /= 2) {
      out[pass] += __shfl_xor_sync(0xffffffff, out[pass], mask);
    }
  }
  __syncthreads();  // the scores have been read: their memory is free
  const auto each_row = [&](auto&& visit) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = pass * kRowsPerPass + lane / kVectors;
      if (row < kHeadDim && lane % kVectors == 0) visit(row, out[pass]);
    }
  };
#pragma unroll
  for (int half = kWarps / 2; half >= 1; half /= 2) {
    if (warp >= half && warp < 2 * half) {
      each_row([&](int row, float& x) { scores[(warp - half) * kHeadDim + row] = x; });
    }
    __syncthreads();
    if (warp < half) {
      each_row([&](int row, float& x) { x += scores[warp * kHeadDim + row]; });
    }
    __syncthreads();
  }

  if (warp != 0) return;
  const int64_t row_idx = int64_t{seq} * op.num_q_heads + head;
  const int64_t part_idx = row_idx * p.max_partitions + partition;
  T* to = kPartitionTokens > 0 ? static_cast<T*>(p.part_out) + part_idx * kHeadDim
                               : static_cast<T*>(op.out) + row_idx * kHeadDim;
  const float factor = op.cache.v_scale / (sum + 1e-6f);
  each_row([&](int row, float& x) { to[row] = Number<T>::FromFloat(x * factor); });
  if (kPartitionTokens > 0 && lane == 0) {
    p.part_max[part_idx] = high;
    p.part_sum[part_idx] = sum;
  }
}

// Merges partitions: out = sum of part_out * part_sum * exp(part_max - max), over the sum of those
// weights.
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kThreads) MergeKernel(const __grid_constant__ KernelParams p) {
  const ClassicAttentionParams& op = p.op;
  const int head = blockIdx.x;
  const int seq = blockIdx.y;
  const int num_partitions =
      (op.context_lens[seq] + kClassicPartitionTokens - 1) / kClassicPartitionTokens;
  const int64_t row_idx = int64_t{seq} * op.num_q_heads + head;
  const T* parts = static_cast<const T*>(p.part_out) + row_idx * p.max_partitions * kHeadDim;
  T* out = static_cast<T*>(op.out) + row_idx * kHeadDim;
  if (num_partitions == 1) {
    for (int i = threadIdx.x; i < kHeadDim; i += kThreads) out[i] = parts[i];
    return;
  }

  extern __shared__ float weights[];  // [max_partitions]
  __shared__ float reduce[kWarps];
  const float* maxima = p.part_max + row_idx * p.max_partitions;
  const float* sums = p.part_sum + row_idx * p.max_partitions;
  float high = -INFINITY;
  for (int i = threadIdx.x; i < num_partitions; i += kThreads) high = fmaxf(high, maxima[i]);
  high = ReduceBlock<Maximum>(high, reduce);
  float total = 0.0f;
  for (int i = threadIdx.x; i < num_partitions; i += kThreads) {
    weights[i] = sums[i] * Exp2((maxima[i] - high) * kLog2E);
    total += weights[i];
  }
  total = ReduceBlock<Sum>(total, reduce);
  for (int i = threadIdx.x; i < kHeadDim; i += kThreads) {
    float sum = 0.0f;
    for (int j = 0; j < num_partitions; ++j) {
      sum += weights[j] * Number<T>::ToFloat(parts[int64_t{j} * kHeadDim + i]);
    }
    out[i] = Number<T>::FromFloat(sum / (total + 1e-6f));
  }
}

// One thread block a token.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    CacheWriteKernel(const __grid_constant__ ClassicCacheWriteParams p) {
  const ClassicKvCache& cache = p.cache;
  const int slot_idx = p.slots[blockIdx.x];
  if (slot_idx < 0 || slot_idx >= cache.num_blocks * cache.block_size) return;
  const int64_t block = slot_idx / cache.block_size;
  const int slot = slot_idx % cache.block_size;
  const T* k = static_cast<const T*>(p.k) + blockIdx.x * p.kv_stride;
  const T* v = static_cast<const T*>(p.v) + blockIdx.x * p.kv_stride;
  for (int i = threadIdx.x; i < cache.num_kv_heads * cache.head_dim; i += kThreads) {
    const int head = i / cache.head_dim;
    const int d = i % cache.head_dim;
    const int64_t head_begin =
        (block * cache.num_kv_heads + head) * cache.head_dim * cache.block_size;
    const int64_t k_place = head_begin + (int64_t{d / kX} * cache.block_size + slot) * kX + d % kX;
    const int64_t v_place = head_begin + int64_t{d} * cache.block_size + slot;
    static_cast<T*>(cache.k)[k_place] =
        Number<T>::FromFloat(Number<T>::ToFloat(k[i]) / cache.k_scale);
    static_cast<T*>(cache.v)[v_place] =
        Number<T>::FromFloat(Number<T>::ToFloat(v[i]) / cache.v_scale);
  }
}

}  // namespace pagoda::kernels::cuda::classic
