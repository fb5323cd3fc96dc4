#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/base/dtype.h"

namespace pagoda::kernels {

// One layer's part of a paged KV pool. Element (block, K|V, head, slot, i) is at
// data + block * block_stride + (is_v ? v_offset : 0) + head * head_stride + slot * head_dim + i, in elements.
// The engine's layout is [layer][block][K|V][kv_head][slot][d].
struct KvCacheView {
  void* data = nullptr;
  DType dtype = DType::kBFloat16;
  int64_t num_blocks = 0;
  int32_t block_size = 0;  // slots of a block, in tokens
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int64_t block_stride = 0;
  int64_t v_offset = 0;
  int64_t head_stride = 0;
  float k_scale = 1.0f;  // stored value * scale = key; 1 for unquantised dtypes
  float v_scale = 1.0f;
};

// What one step attends to; made once a step and shared by all layers. Row = one query token; the rows of a sequence
// follow one another and are its last tokens. Arrays are in the backend's memory, at addresses that stay the same from
// step to step; host_ arrays mirror them for planning.
struct AttentionBatch {
  int32_t num_seqs = 0;
  int32_t num_rows = 0;
  const int32_t* row_offsets = nullptr;     // [num_seqs + 1], first row of each sequence
  const int32_t* context_lens = nullptr;    // [num_seqs], tokens in the cache after this step's writes
  const int32_t* block_tables = nullptr;    // [num_seqs, block_table_stride], block ids in order of position
  int64_t block_table_stride = 0;
  const int32_t* positions = nullptr;       // [num_rows], index of the token in its sequence
  // [num_rows], block * block_size + slot where its K and V go; -1: nowhere (rows that only pad a batch).
  const int32_t* kv_slots = nullptr;
  const int32_t* host_row_offsets = nullptr;
  const int32_t* host_context_lens = nullptr;
};

absl::Status Validate(const AttentionBatch& batch);

// Rotates q and k of each row by its position (pairs (i, i + rotary_dim / 2)) in place and writes k and v to the cache.
struct RopeKvWriteParams {
  void* qkv = nullptr;               // [num_rows, qkv_stride] in dtype: q heads, then k heads, then v heads
  int64_t qkv_stride = 0;
  const float* cos_sin = nullptr;    // [max_positions, rotary_dim]: rotary_dim/2 cosines, then sines; null: no rotation
  int64_t max_positions = 0;
  int32_t rotary_dim = 0;            // <= head_dim, even
  int32_t num_q_heads = 0;
  const AttentionBatch* batch = nullptr;
  KvCacheView cache;
  DType dtype = DType::kFloat32;
};

absl::Status Validate(const RopeKvWriteParams& params);

// Causal attention of each row over its sequence's cached tokens, itself included:
// row at position p sees keys max(0, p - window + 1) .. p. The order of accumulation is a function of p alone.
struct PagedAttentionParams {
  const void* q = nullptr;  // [num_rows, q_stride] in dtype: num_q_heads * head_dim
  int64_t q_stride = 0;
  void* out = nullptr;      // [num_rows, num_q_heads * head_dim] in dtype
  int32_t num_q_heads = 0;  // a multiple of cache.num_kv_heads
  const AttentionBatch* batch = nullptr;
  KvCacheView cache;
  float scale = 1.0f;                    // of q . k
  int32_t window = 0;                    // keys a row sees, itself included; 0: all
  float soft_cap = 0.0f;                 // scores become cap * tanh(score / cap); 0: off
  const float* alibi_slopes = nullptr;   // [num_q_heads] float32, or null; adds slope * (key - p)
  DType dtype = DType::kFloat32;
};

absl::Status Validate(const PagedAttentionParams& params);

}  // namespace pagoda::kernels
