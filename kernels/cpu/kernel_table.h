#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/sample_kernels.h"
#include "kernels/ops/activation_kind.h"

// What the per-ISA files export: single-threaded kernels over plain arrays. The ops of this folder
// validate, divide the work among threads and call them. Nothing here may include headers with
// inline code: a function compiled for AVX-512 in one file must never be the one the linker keeps
// for all.

namespace pagoda::kernels::cpu {

enum class Element : uint8_t { kFloat32, kBFloat16 };

// y[r, c] = sum over k of x[r, k] * w[c, k] (+ bias[c] + residual[r, c]) for a block of rows and
// panels of a weight in kPanel16. x is in the form that prepare_x makes. Every element is
// accumulated over k in one order.
struct LinearBlock {
  const void* x = nullptr;  // row 0 of the block
  int64_t x_stride_bytes = 0;
  const void* weight = nullptr;     // panel 0 of the whole weight
  const float* bias = nullptr;      // [n] or null
  const float* residual = nullptr;  // row 0 of the block, column 0; or null
  float* y = nullptr;               // row 0 of the block, column 0
  int64_t y_stride = 0;
  int64_t num_rows = 0;
  int64_t panel_begin = 0;
  int64_t panel_end = 0;
  int64_t n = 0;  // columns of the whole weight
  int64_t num_k_pairs = 0;
  // Of this thread, WidePanelBytes(num_k_pairs), 64-byte aligned; read and written only where
  // num_rows >= kRowsWorthWidening.
  float* wide_panel = nullptr;
};

// From so many rows on, a kernel without an instruction for bfloat16 widens each panel once.
inline constexpr int64_t kRowsWorthWidening = 24;
inline constexpr size_t WidePanelBytes(int64_t num_k_pairs) {
  return static_cast<size_t>(num_k_pairs) * 2 * 16 * sizeof(float);
}

// Everything about a PagedAttention call that does not change between its work items.
struct AttentionShape {
  const float* q = nullptr;
  int64_t q_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int32_t num_q_heads = 0;
  int32_t group = 0;  // query heads of one KV head
  const void* cache = nullptr;
  Element cache_element = Element::kBFloat16;
  int64_t num_blocks = 0;
  int32_t block_size = 0;
  int32_t head_dim = 0;
  int64_t block_stride = 0;
  int64_t v_offset = 0;
  int64_t head_stride = 0;
  float score_scale = 1.0f;  // softmax scale times k_scale
  float v_scale = 1.0f;
  int32_t window = 0;
  float soft_cap = 0.0f;
  const float* alibi_slopes = nullptr;
};

// Keys of a row are taken in partitions of absolute positions [i * kPartition, (i + 1) *
// kPartition), each with a softmax of its own, merged in order of position: what a row gets depends
// on its position and on nothing else.
inline constexpr int32_t kPartition = 256;

// Rows [row_begin, row_end) of one sequence, one KV head, partitions [partition_begin,
// partition_end).
struct AttentionItem {
  const int32_t* block_table = nullptr;
  int32_t kv_head = 0;
  int64_t row_begin = 0;  // in the batch
  int32_t num_rows = 0;
  int32_t first_position = 0;  // of row_begin
  int32_t partition_begin = 0;
  int32_t partition_end = 0;
  // Null: all partitions of the rows are here and the result goes to `out`. Else the state of each
  // (row, head), one partition, goes to partial + (row * group + head) * partial_stride.
  float* partial = nullptr;
  int64_t partial_stride = 0;
};

// State of a softmax over some keys: [head_dim] weighted sum of values, then maximum, then sum of
// weights.
inline constexpr int64_t AttentionStateFloats(int32_t head_dim) {
  return (head_dim + 15) / 16 * 16 + 16;
}

struct KernelTable {
  Isa isa = Isa::kScalar;

  // Rounds or copies num_rows rows of k floats to what linear_block reads: x_row_bytes(k, weight
  // element) a row, zero padded.
  int64_t (*x_row_bytes)(int64_t k, Element weight);
  void (*prepare_x)(
      const float* x, int64_t x_stride, int64_t num_rows, int64_t k, Element weight, void* out);
  void (*linear_block)(const LinearBlock& block, Element weight);

  size_t (*attention_scratch_bytes)(const AttentionShape& shape, int64_t max_rows);
  // False: a block id is outside the cache.
  bool (*attend)(const AttentionShape& shape, const AttentionItem& item, void* scratch);
  // Merges states 0 .. num_partials - 1 (partial_stride floats apart) in order and writes the
  // output row.
  void (*merge_partials)(float* partials,
                         int64_t partial_stride,
                         int32_t num_partials,
                         int32_t head_dim,
                         float v_scale,
                         float* out);

  void (*rms_norm_row)(const float* x,
                       const float* weight,
                       float weight_offset,
                       float epsilon,
                       int64_t width,
                       float* y);
  void (*silu_mul_row)(const float* gate, const float* up, int64_t width, float* y);
  // `bias` may be null.
  void (*layer_norm_row)(const float* x,
                         const float* weight,
                         const float* bias,
                         float epsilon,
                         int64_t width,
                         float* y);
  // `up` is what the activation is multiplied with, or null.
  void (*activate_row)(
      const float* x, const float* up, Activation activation, int64_t width, float* y);
  void (*add_scaled_row)(const float* x, float scale, int64_t width, float* y);
  void (*adjust_logits_row)(float scale, float soft_cap, int64_t width, float* logits);
  // Rotates the first rotary_dim of a head in place; cos and sin have rotary_dim / 2 each.
  void (*rotate_head)(float* head, const float* cos, const float* sin, int32_t rotary_dim);
  // source * inverse_scale, in the type of the cache.
  void (*store_kv)(
      const float* source, float inverse_scale, int64_t count, Element element, void* out);
  // Elements [first_index, first_index + count) of the stream that kernels/ops/normal.h defines,
  // times stddev.
  void (*fill_normal)(uint64_t seed, uint64_t first_index, int64_t count, float stddev, float* out);

  SampleKernels sample;
};

const KernelTable& ScalarKernels();
#if defined(__x86_64__)
const KernelTable& Avx2Kernels();
const KernelTable& Avx512Kernels();
const KernelTable& Avx512Bf16Kernels();
#endif

// REQUIRES: the processor supports `isa`.
const KernelTable& KernelsFor(Isa isa);

}  // namespace pagoda::kernels::cpu
