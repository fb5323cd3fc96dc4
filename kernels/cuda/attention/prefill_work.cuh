#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/device.cuh"
#include "kernels/cuda/attention/kv_pages.cuh"

namespace pagoda::kernels::cuda {

struct PrefillKernelParams {
  const void* q = nullptr;
  int64_t q_stride = 0;
  void* out = nullptr;
  int32_t num_q_heads = 0;
  int32_t group_size = 0;
  int32_t tokens_per_tile = 0;
  KvPages kv;
  ScoreParams score;
  const AttentionPlanHeader* header = nullptr;
  const PrefillTile* tiles = nullptr;
};

// The i-th work item of a block: back and forth over the blocks, so that none always gets the
// longer one.
__device__ __forceinline__ int PrefillWorkIndex(int i) {
  const int grid = static_cast<int>(gridDim.x);
  const int cta = static_cast<int>(blockIdx.x);
  return i * grid + (i % 2 == 0 ? cta : grid - 1 - cta);
}

// A tile of packed rows against its keys. Row r of the tile is token r / group_size, query head r %
// group_size of the group.
struct PrefillWork {
  int32_t seq_idx;
  int32_t kv_head;
  int32_t first_row;       // of the batch
  int32_t num_tokens;      // that the tile really has
  int32_t first_position;  // of its first token
  int32_t first_key;       // first that any row sees
  int32_t end_key;         // one past the last that any row sees
  int32_t context_len;     // keys there are
};

__device__ __forceinline__ PrefillWork ReadPrefillWork(const PrefillKernelParams& p, int index) {
  const int tile_idx = index / p.kv.num_kv_heads;
  const PrefillTile tile = p.tiles[tile_idx];
  PrefillWork work;
  work.seq_idx = tile.seq_idx;
  work.kv_head = index - tile_idx * p.kv.num_kv_heads;
  const int row_begin = p.kv.row_offsets[tile.seq_idx];
  const int num_rows = p.kv.row_offsets[tile.seq_idx + 1] - row_begin;
  work.first_row = row_begin + tile.first_row;
  work.num_tokens = min(p.tokens_per_tile, num_rows - tile.first_row);
  work.context_len = p.kv.context_lens[tile.seq_idx];
  work.first_position = work.context_len - num_rows + tile.first_row;
  work.first_key = p.score.window > 0 ? max(0, work.first_position - p.score.window + 1) : 0;
  work.end_key = work.first_position + work.num_tokens;
  return work;
}

// The two rows of a tile that a thread holds, lane / 4 and lane / 4 + 8 of its warp's 16.
struct RowPair {
  int32_t position[2];
  float slope[2];
};

template <bool kExtras>
__device__ __forceinline__ RowPair ReadRowPair(const PrefillKernelParams& p,
                                               const PrefillWork& work,
                                               int row) {
  RowPair rows;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int packed = row + i * 8;
    const int token = packed / p.group_size;
    rows.position[i] = work.first_position + token;
    rows.slope[i] = 0.0f;
    if constexpr (kExtras) {
      if (p.score.alibi_slopes != nullptr) {
        rows.slope[i] =
            p.score.alibi_slopes[work.kv_head * p.group_size + packed - token * p.group_size];
      }
    }
  }
  return rows;
}

// Scores of a warp's 16 rows in the layout of mma's and wgmma's accumulators: s[4 n + j] is row
// lane / 4 + 8 (j / 2), column 8 n + 2 (lane % 4) + j % 2.

// Scores with a cap or slopes, in units of log 2.
template <int kCount>
__device__ __forceinline__ void ApplyScoreExtras(float (&s)[kCount],
                                                 const ScoreParams& score,
                                                 const RowPair& rows,
                                                 int first_key) {
  const int key = first_key + static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int row = (i % 4) / 2;
    float x = s[i] * score.scale;
    if (score.soft_cap > 0.0f) x = score.soft_cap * Tanh(x / score.soft_cap);
    const int distance = key + (i / 4) * 8 + i % 2 - rows.position[row];
    s[i] = kLog2E * (x + rows.slope[row] * static_cast<float>(distance));
  }
}

// Keys after a row's own, and before its window.
template <int kCount>
__device__ __forceinline__ void MaskScores(float (&s)[kCount],
                                           int window,
                                           const RowPair& rows,
                                           int first_key) {
  const int key = first_key + static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    // Relative to this thread's first column.
    const int last = rows.position[row] - key;
    const int begin = window > 0 ? last - window + 1 : INT32_MIN;
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int column = n * 8 + odd;
        if (column > last || column < begin) s[4 * n + 2 * row + odd] = -INFINITY;
      }
    }
  }
}

// Running softmax of a thread's two rows. Maxima are of raw scores, `scale` turns them into units
// of log 2. A sum is of this thread's columns alone until Total().
struct OnlineSoftmax {
  float maximum[2];
  float sum[2];

  __device__ __forceinline__ void Begin() {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      maximum[row] = -INFINITY;
      sum[row] = 0.0f;
    }
  }

  // Turns scores into probabilities relative to the new maximum; `factor` is what earlier outputs
  // are multiplied by. kMasked: a row may have seen no key yet.
  template <bool kMasked, int kCount>
  __device__ __forceinline__ void Update(float (&s)[kCount], float scale, float (&factor)[2]) {
    float high[2] = {maximum[0], maximum[1]};
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        high[row] = fmaxf(high[row], fmaxf(s[4 * n + 2 * row], s[4 * n + 2 * row + 1]));
      }
    }
    float base[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      high[row] = fmaxf(high[row], __shfl_xor_sync(0xffffffff, high[row], 1));
      high[row] = fmaxf(high[row], __shfl_xor_sync(0xffffffff, high[row], 2));
      base[row] = kMasked && high[row] == -INFINITY ? 0.0f : high[row] * scale;
      // Exp2(-inf) is 0: a first tile keeps nothing.
      factor[row] = Exp2(maximum[row] * scale - base[row]);
      maximum[row] = high[row];
    }
    float part[2] = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float& x = s[4 * n + j];
        x = Exp2(fmaf(x, scale, -base[j / 2]));
        part[j / 2] += x;
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) sum[row] = fmaf(sum[row], factor[row], part[row]);
  }

  __device__ __forceinline__ float Total(int row) const {
    float total = sum[row];
    total += __shfl_xor_sync(0xffffffff, total, 1);
    total += __shfl_xor_sync(0xffffffff, total, 2);
    return total;
  }
};

// Rows of outputs, kDim columns, by one warp: registers to its 16 rows of swizzled shared memory,
// then in 16-byte vectors to the batch. `place(row, chunk)` is the address of a chunk of the tile
// in shared memory.
template <typename T, int kDim, typename Place>
__device__ __forceinline__ void WriteOutputRows(const PrefillKernelParams& p,
                                                const PrefillWork& work,
                                                float (&out)[kDim / 2],
                                                const float (&factor)[2],
                                                int warp_row,
                                                const Place& place) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp_row + lane / 4 + i * 8;
      *reinterpret_cast<uint32_t*>(place(row, n) + (lane % 4) * 4) =
          Number<T>::Pack(out[4 * n + 2 * i] * factor[i], out[4 * n + 2 * i + 1] * factor[i]);
    }
  }
  __syncwarp();
  constexpr int kChunks = kDim / 8;
#pragma unroll 4
  for (int linear = lane; linear < 16 * kChunks; linear += 32) {
    const int row = warp_row + linear / kChunks;
    const int chunk = linear % kChunks;
    const int token = row / p.group_size;
    if (token >= work.num_tokens) continue;
    const int head = work.kv_head * p.group_size + row - token * p.group_size;
    T* to = static_cast<T*>(p.out) +
            (int64_t{work.first_row + token} * p.num_q_heads + head) * kDim + chunk * 8;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(place(row, chunk));
  }
}

}  // namespace pagoda::kernels::cuda
