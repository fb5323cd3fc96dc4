#include "kernels/ops/attention.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels {
namespace {

absl::Status ValidateCache(absl::string_view op, const KvCacheView& cache) {
  PAGODA_RETURN_IF_ERROR(RequireActivation(absl::StrCat(op, ".cache.dtype"), cache.dtype));
  PAGODA_RETURN_IF_ERROR(
      RequireAtLeast(absl::StrCat(op, ".cache.num_blocks"), cache.num_blocks, 1));
  PAGODA_RETURN_IF_ERROR(
      RequireAtLeast(absl::StrCat(op, ".cache.block_size"), cache.block_size, 1));
  PAGODA_RETURN_IF_ERROR(
      RequireAtLeast(absl::StrCat(op, ".cache.num_kv_heads"), cache.num_kv_heads, 1));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast(absl::StrCat(op, ".cache.head_dim"), cache.head_dim, 1));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast(absl::StrCat(op, ".cache.head_stride"),
                                        cache.head_stride,
                                        int64_t{cache.block_size} * cache.head_dim));
  PAGODA_RETURN_IF_ERROR(
      RequireAtLeast(absl::StrCat(op, ".cache.block_stride"), cache.block_stride, 1));
  PAGODA_RETURN_IF_ERROR(RequireFinite(absl::StrCat(op, ".cache.k_scale"), cache.k_scale));
  PAGODA_RETURN_IF_ERROR(RequireFinite(absl::StrCat(op, ".cache.v_scale"), cache.v_scale));
  return RequirePointer(absl::StrCat(op, ".cache.data"), cache.data);
}

absl::Status ValidateHeads(absl::string_view op, int32_t num_q_heads, const KvCacheView& cache) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast(absl::StrCat(op, ".num_q_heads"), num_q_heads, 1));
  return RequireMultiple(absl::StrCat(op, ".num_q_heads"), num_q_heads, cache.num_kv_heads);
}

}  // namespace

absl::Status Validate(const AttentionBatch& batch) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("AttentionBatch.num_seqs", batch.num_seqs, 0));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("AttentionBatch.num_rows", batch.num_rows, 0));
  if (batch.num_rows == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("AttentionBatch.num_seqs", batch.num_seqs, 1));
  PAGODA_RETURN_IF_ERROR(
      RequireAtLeast("AttentionBatch.block_table_stride", batch.block_table_stride, 1));
  PAGODA_RETURN_IF_ERROR(RequirePointer("AttentionBatch.row_offsets", batch.row_offsets));
  PAGODA_RETURN_IF_ERROR(RequirePointer("AttentionBatch.context_lens", batch.context_lens));
  PAGODA_RETURN_IF_ERROR(RequirePointer("AttentionBatch.block_tables", batch.block_tables));
  PAGODA_RETURN_IF_ERROR(RequirePointer("AttentionBatch.positions", batch.positions));
  PAGODA_RETURN_IF_ERROR(RequirePointer("AttentionBatch.kv_slots", batch.kv_slots));
  PAGODA_RETURN_IF_ERROR(RequirePointer("AttentionBatch.host_row_offsets", batch.host_row_offsets));
  PAGODA_RETURN_IF_ERROR(
      RequirePointer("AttentionBatch.host_context_lens", batch.host_context_lens));
  const int32_t* offsets = batch.host_row_offsets;
  PAGODA_RETURN_IF_ERROR(RequireBetween("AttentionBatch.host_row_offsets[0]", offsets[0], 0, 0));
  for (int32_t s = 0; s < batch.num_seqs; ++s) {
    const int32_t rows = offsets[s + 1] - offsets[s];
    if (rows < 0) {
      return RequireAtLeast(
          absl::StrCat("AttentionBatch.host_row_offsets[", s + 1, "]"), offsets[s + 1], offsets[s]);
    }
    if (batch.host_context_lens[s] < rows) {
      return RequireAtLeast(absl::StrCat("AttentionBatch.host_context_lens[", s, "]"),
                            batch.host_context_lens[s],
                            rows);
    }
  }
  return RequireBetween(absl::StrCat("AttentionBatch.host_row_offsets[", batch.num_seqs, "]"),
                        offsets[batch.num_seqs],
                        0,
                        batch.num_rows);
}

absl::Status Validate(const RopeKvWriteParams& params) {
  PAGODA_RETURN_IF_ERROR(RequirePointer("RopeKvWrite.batch", params.batch));
  PAGODA_RETURN_IF_ERROR(ValidateCache("RopeKvWrite", params.cache));
  PAGODA_RETURN_IF_ERROR(ValidateHeads("RopeKvWrite", params.num_q_heads, params.cache));
  PAGODA_RETURN_IF_ERROR(RequireActivation("RopeKvWrite.dtype", params.dtype));
  PAGODA_RETURN_IF_ERROR(
      RequireBetween("RopeKvWrite.rotary_dim", params.rotary_dim, 0, params.cache.head_dim));
  PAGODA_RETURN_IF_ERROR(RequireMultiple("RopeKvWrite.rotary_dim", params.rotary_dim, 2));
  if (params.cos_sin != nullptr) {
    PAGODA_RETURN_IF_ERROR(RequireAtLeast("RopeKvWrite.max_positions", params.max_positions, 1));
  }
  if (params.batch->num_rows == 0) return absl::OkStatus();
  const int64_t width = (int64_t{params.num_q_heads} + 2 * int64_t{params.cache.num_kv_heads}) *
                        params.cache.head_dim;
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("RopeKvWrite.qkv_stride", params.qkv_stride, width));
  PAGODA_RETURN_IF_ERROR(RequirePointer("RopeKvWrite.batch.positions", params.batch->positions));
  PAGODA_RETURN_IF_ERROR(RequirePointer("RopeKvWrite.batch.kv_slots", params.batch->kv_slots));
  return RequirePointer("RopeKvWrite.qkv", params.qkv);
}

absl::Status Validate(const PagedAttentionParams& params) {
  PAGODA_RETURN_IF_ERROR(RequirePointer("PagedAttention.batch", params.batch));
  PAGODA_RETURN_IF_ERROR(ValidateCache("PagedAttention", params.cache));
  PAGODA_RETURN_IF_ERROR(ValidateHeads("PagedAttention", params.num_q_heads, params.cache));
  PAGODA_RETURN_IF_ERROR(RequireActivation("PagedAttention.dtype", params.dtype));
  PAGODA_RETURN_IF_ERROR(RequireFinite("PagedAttention.scale", params.scale));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("PagedAttention.window", params.window, 0));
  PAGODA_RETURN_IF_ERROR(RequireFinite("PagedAttention.soft_cap", params.soft_cap));
  if (params.soft_cap < 0.0f) {
    return absl::InvalidArgumentError(
        absl::StrCat("PagedAttention.soft_cap is ", params.soft_cap, "; expected 0 (off) or more"));
  }
  if (params.batch->num_rows == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("PagedAttention.q_stride",
                                        params.q_stride,
                                        int64_t{params.num_q_heads} * params.cache.head_dim));
  PAGODA_RETURN_IF_ERROR(RequirePointer("PagedAttention.q", params.q));
  return RequirePointer("PagedAttention.out", params.out);
}

}  // namespace pagoda::kernels
