#pragma once

#include <cstdint>

#include "kernels/ops/attention.h"

namespace pagoda::kernels::cuda {

// What the kernels need of a KvCacheView and an AttentionBatch, by value.
struct KvPages {
  const void* data = nullptr;
  int64_t block_stride = 0;  // elements, as are all strides
  int64_t v_offset = 0;
  int64_t head_stride = 0;
  int32_t num_blocks = 0;
  int32_t block_size = 0;
  int32_t block_size_log2 = 0;
  int32_t num_kv_heads = 0;
  const int32_t* row_offsets = nullptr;
  const int32_t* context_lens = nullptr;
  const int32_t* block_tables = nullptr;
  int64_t block_table_stride = 0;

  // The host has checked every id; a stray one must still not leave the pool.
  __device__ __forceinline__ int32_t ClampBlock(int32_t block) const {
    return min(max(block, 0), num_blocks - 1);
  }
};

inline KvPages MakeKvPages(const KvCacheView& cache, const AttentionBatch& batch) {
  int32_t log2 = 0;
  while ((1 << log2) < cache.block_size) ++log2;
  return {.data = cache.data,
          .block_stride = cache.block_stride,
          .v_offset = cache.v_offset,
          .head_stride = cache.head_stride,
          .num_blocks = static_cast<int32_t>(cache.num_blocks),
          .block_size = cache.block_size,
          .block_size_log2 = log2,
          .num_kv_heads = cache.num_kv_heads,
          .row_offsets = batch.row_offsets,
          .context_lens = batch.context_lens,
          .block_tables = batch.block_tables,
          .block_table_stride = batch.block_table_stride};
}

// How scores are made of q . k, and outputs of p . v.
struct ScoreParams {
  float scale = 1.0f;  // of q . k, the keys' scale included
  float v_scale = 1.0f;
  float soft_cap = 0.0f;
  const float* alibi_slopes = nullptr;
  int32_t window = 0;
};

inline ScoreParams MakeScoreParams(const PagedAttentionParams& params) {
  return {.scale = params.scale * params.cache.k_scale,
          .v_scale = params.cache.v_scale,
          .soft_cap = params.soft_cap,
          .alibi_slopes = params.alibi_slopes,
          .window = params.window};
}

// Whether scores need more than a scale: those kernels are built apart, so that the plain ones do
// not pay.
inline bool HasScoreExtras(const ScoreParams& score) {
  return score.soft_cap > 0.0f || score.alibi_slopes != nullptr;
}

}  // namespace pagoda::kernels::cuda
