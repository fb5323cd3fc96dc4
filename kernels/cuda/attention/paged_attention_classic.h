#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "kernels/base/dtype.h"

namespace pagoda::kernels::cuda {

// The first PagedAttention kernels, as a reference that can be read and as the measuring stick of
// the production ones. One thread block per (query head, sequence[, partition]); decode only: one
// query row a sequence. Their layouts keep what a warp reads together together:
//   K [block][kv_head][head_dim / x][slot][x], x = 16 bytes of elements
//   V [block][kv_head][head_dim][slot]
struct ClassicKvCache {
  void* k = nullptr;
  void* v = nullptr;
  int64_t num_blocks = 0;
  int32_t block_size = 0;  // 16 or 32
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  DType dtype = DType::kBFloat16;
  float k_scale = 1.0f;  // stored value * scale = key
  float v_scale = 1.0f;
};

struct ClassicAttentionParams {
  void* out = nullptr;      // [num_seqs, num_q_heads, head_dim]
  const void* q = nullptr;  // [num_seqs, q_stride]: num_q_heads * head_dim
  int64_t q_stride = 0;
  int32_t num_seqs = 0;
  int32_t num_q_heads = 0;
  ClassicKvCache cache;
  const int32_t* block_tables = nullptr;  // [num_seqs, block_table_stride]
  int64_t block_table_stride = 0;
  const int32_t* context_lens = nullptr;  // [num_seqs]
  int32_t max_context_len = 0;
  float scale = 1.0f;
  const float* alibi_slopes = nullptr;  // [num_q_heads], or null
  // Block-sparse attention of some versions is refused: anything but these values is UNIMPLEMENTED.
  int32_t blocksparse_local_blocks = 0;
  int32_t blocksparse_vert_stride = 0;
  int32_t blocksparse_block_size = 64;
  int32_t blocksparse_head_sliding_step = 0;
};

// Version 1: the whole context in one block, its scores in shared memory; RESOURCE_EXHAUSTED where
// they do not fit.
absl::Status LaunchPagedAttentionClassicV1(const ClassicAttentionParams& params,
                                           cudaStream_t stream);

inline constexpr int32_t kClassicPartitionTokens = 512;

// Version 2: partitions of 512 tokens, then one block per (query head, sequence) merges them by
// log-sum-exp; a context of one partition is only copied. `workspace` holds
// ClassicWorkspaceBytes().
absl::Status LaunchPagedAttentionClassicV2(const ClassicAttentionParams& params,
                                           void* workspace,
                                           cudaStream_t stream);
int64_t ClassicWorkspaceBytes(int32_t num_seqs,
                              int32_t num_q_heads,
                              int32_t head_dim,
                              int32_t max_context_len);

// Writes one row a token: keys and values [num_tokens, kv_stride], num_kv_heads * head_dim each, to
// slots[i] = block * block_size + slot; a negative slot is padding.
struct ClassicCacheWriteParams {
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t kv_stride = 0;
  int32_t num_tokens = 0;
  const int32_t* slots = nullptr;
  ClassicKvCache cache;
};

absl::Status LaunchClassicCacheWrite(const ClassicCacheWriteParams& params, cudaStream_t stream);

}  // namespace pagoda::kernels::cuda
