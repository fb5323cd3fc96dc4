#include <algorithm>
#include <atomic>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/ops.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels::cpu {
namespace {

// Rows x heads of one work item: enough to pay for gathering a partition's keys, few enough to
// divide a prefill well.
constexpr int32_t kItemStates = 96;

absl::Status Supported(DType dtype, const KvCacheView& cache, absl::string_view op) {
  PAGODA_RETURN_IF_ERROR(RequireDType(absl::StrCat(op, ".dtype"), dtype, {DType::kFloat32}));
  PAGODA_RETURN_IF_ERROR(RequireDType(
      absl::StrCat(op, ".cache.dtype"), cache.dtype, {DType::kFloat32, DType::kBFloat16}));
  return RequireMultiple(absl::StrCat(op, ".cache.head_dim"), cache.head_dim, 8);
}

Element ElementOf(DType dtype) {
  return dtype == DType::kFloat32 ? Element::kFloat32 : Element::kBFloat16;
}

}  // namespace

absl::Status RopeKvWrite(Context& context, const RopeKvWriteParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  PAGODA_RETURN_IF_ERROR(Supported(params.dtype, params.cache, "RopeKvWrite"));
  const AttentionBatch& batch = *params.batch;
  const KvCacheView& cache = params.cache;
  const bool rotates = params.cos_sin != nullptr && params.rotary_dim > 0;
  for (int32_t row = 0; row < batch.num_rows; ++row) {
    if (batch.kv_slots[row] < -1 || batch.kv_slots[row] / cache.block_size >= cache.num_blocks) {
      return RequireBetween(absl::StrCat("RopeKvWrite.batch.kv_slots[", row, "]"),
                            batch.kv_slots[row],
                            -1,
                            cache.num_blocks * cache.block_size - 1);
    }
    if (rotates && (batch.positions[row] < 0 || batch.positions[row] >= params.max_positions)) {
      return RequireBetween(absl::StrCat("RopeKvWrite.batch.positions[", row, "]"),
                            batch.positions[row],
                            0,
                            params.max_positions - 1);
    }
  }
  const int64_t d = cache.head_dim;
  const size_t element_bytes = DTypeBytes(cache.dtype);
  const int64_t num_heads = params.num_q_heads + 2 * cache.num_kv_heads;
  const auto write_row = [&](int64_t row) {
    float* qkv = static_cast<float*>(params.qkv) + row * params.qkv_stride;
    float* k = qkv + params.num_q_heads * d;
    if (rotates) {
      const float* cos = params.cos_sin + int64_t{batch.positions[row]} * params.rotary_dim;
      const float* sin = cos + params.rotary_dim / 2;
      for (int64_t h = 0; h < params.num_q_heads + cache.num_kv_heads; ++h) {
        context.kernels.rotate_head(qkv + h * d, cos, sin, params.rotary_dim);
      }
    }
    if (batch.kv_slots[row] < 0) return;
    const int64_t block = batch.kv_slots[row] / cache.block_size;
    const int64_t slot = batch.kv_slots[row] % cache.block_size;
    for (int64_t h = 0; h < cache.num_kv_heads; ++h) {
      const int64_t at = block * cache.block_stride + h * cache.head_stride + slot * d;
      char* out = static_cast<char*>(cache.data) + at * element_bytes;
      context.kernels.store_kv(k + h * d, 1.0f / cache.k_scale, d, ElementOf(cache.dtype), out);
      context.kernels.store_kv(k + (cache.num_kv_heads + h) * d,
                               1.0f / cache.v_scale,
                               d,
                               ElementOf(cache.dtype),
                               out + cache.v_offset * element_bytes);
    }
  };
  context.ParallelFor(
      batch.num_rows, batch.num_rows * num_heads * d / 8, [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) write_row(row);
      });
  return absl::OkStatus();
}

namespace {

AttentionShape ShapeOf(const PagedAttentionParams& params) {
  const KvCacheView& cache = params.cache;
  return {
      .q = static_cast<const float*>(params.q),
      .q_stride = params.q_stride,
      .out = static_cast<float*>(params.out),
      .out_stride = int64_t{params.num_q_heads} * cache.head_dim,
      .num_q_heads = params.num_q_heads,
      .group = params.num_q_heads / cache.num_kv_heads,
      .cache = cache.data,
      .cache_element = ElementOf(cache.dtype),
      .num_blocks = cache.num_blocks,
      .block_size = cache.block_size,
      .head_dim = cache.head_dim,
      .block_stride = cache.block_stride,
      .v_offset = cache.v_offset,
      .head_stride = cache.head_stride,
      .score_scale = params.scale * cache.k_scale,
      .v_scale = cache.v_scale,
      .window = params.window,
      .soft_cap = params.soft_cap,
      .alibi_slopes = params.alibi_slopes,
  };
}

}  // namespace

AttentionPlan PlanAttention(const AttentionBatch& batch,
                            int32_t window,
                            int32_t group,
                            int32_t num_kv_heads,
                            int num_threads) {
  const int32_t rows_per_item = std::max(1, kItemStates / group);
  AttentionPlan plan;
  for (int32_t s = 0; s < batch.num_seqs; ++s) {
    const int32_t end_row = batch.host_row_offsets[s + 1];
    for (int32_t row = batch.host_row_offsets[s]; row < end_row; row += rows_per_item) {
      const int32_t num_rows = std::min(rows_per_item, end_row - row);
      const int32_t first_position = batch.host_context_lens[s] - (end_row - row);
      const int32_t first_key = window > 0 ? std::max(0, first_position - window + 1) : 0;
      plan.blocks.push_back({.seq = s,
                             .row_begin = row,
                             .num_rows = num_rows,
                             .first_position = first_position,
                             .partition_begin = first_key / kPartition,
                             .partition_end = (first_position + num_rows - 1) / kPartition + 1});
      plan.max_rows = std::max(plan.max_rows, num_rows);
    }
  }
  // Few blocks, or blocks of few rows: their partitions are worked on apart and merged afterwards,
  // in order.
  const bool few_blocks =
      static_cast<int64_t>(plan.blocks.size()) * num_kv_heads < int64_t{4} * num_threads;
  for (AttentionPlan::Block& block : plan.blocks) {
    const int32_t num_partitions = block.partition_end - block.partition_begin;
    block.is_split = num_partitions > 1 && (few_blocks || block.num_rows * group <= 8);
    block.first_item = plan.num_items;
    block.first_partial = plan.num_partials;
    plan.num_items += block.is_split ? num_partitions : 1;
    if (block.is_split) plan.num_partials += int64_t{num_partitions} * block.num_rows * group;
  }
  return plan;
}

namespace {

// Runs item `item_idx` of a block for one KV head.
bool RunItem(Context& context,
             const PagedAttentionParams& params,
             const AttentionShape& shape,
             const AttentionPlan::Block& block,
             int64_t item_idx,
             int32_t kv_head,
             float* partials,
             int thread_idx) {
  AttentionItem item = {
      .block_table = params.batch->block_tables + block.seq * params.batch->block_table_stride,
      .kv_head = kv_head,
      .row_begin = block.row_begin,
      .num_rows = block.num_rows,
      .first_position = block.first_position,
      .partition_begin = block.partition_begin,
      .partition_end = block.partition_end,
  };
  if (block.is_split) {
    const int64_t state_floats = AttentionStateFloats(shape.head_dim);
    const int32_t num_partitions = block.partition_end - block.partition_begin;
    const auto partition = static_cast<int32_t>(item_idx - block.first_item);
    item.partition_begin += partition;
    item.partition_end = item.partition_begin + 1;
    // Partials of one row and head follow one another.
    item.partial_stride = num_partitions * state_floats;
    item.partial = partials + (block.first_partial + partition) * state_floats;
  }
  return context.kernels.attend(shape, item, context.thread_scratch[thread_idx].data());
}

}  // namespace

absl::Status PagedAttention(Context& context, const PagedAttentionParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  PAGODA_RETURN_IF_ERROR(Supported(params.dtype, params.cache, "PagedAttention"));
  const AttentionBatch& batch = *params.batch;
  if (batch.num_rows == 0) return absl::OkStatus();
  const AttentionShape shape = ShapeOf(params);
  const int32_t num_kv_heads = params.cache.num_kv_heads;
  const AttentionPlan plan =
      PlanAttention(batch, params.window, shape.group, num_kv_heads, context.pool.num_threads());
  const int64_t state_floats = AttentionStateFloats(shape.head_dim);
  const int64_t partial_floats = plan.num_partials * state_floats;
  PAGODA_ASSIGN_OR_RETURN(
      void* const shared,
      context.shared_scratch.Reserve(partial_floats * num_kv_heads * sizeof(float)));
  float* const partials = static_cast<float*>(shared);
  const size_t scratch_bytes = context.kernels.attention_scratch_bytes(shape, plan.max_rows);
  for (Scratch& scratch : context.thread_scratch)
    PAGODA_RETURN_IF_ERROR(scratch.Reserve(scratch_bytes).status());

  // Items differ in cost with their positions, and no result depends on who computes it: threads
  // take the next one, the last (longest) rows first.
  std::atomic<int64_t> next{0};
  std::atomic<bool> bad_block{false};
  const int64_t total_items = plan.num_items * num_kv_heads;
  const auto work = [&](int thread_idx) {
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < total_items;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      const int64_t item_idx = plan.num_items - 1 - i / num_kv_heads;
      const auto kv_head = static_cast<int32_t>(i % num_kv_heads);
      const auto after = std::upper_bound(
          plan.blocks.begin(),
          plan.blocks.end(),
          item_idx,
          [](int64_t idx, const AttentionPlan::Block& block) { return idx < block.first_item; });
      if (!RunItem(context,
                   params,
                   shape,
                   *(after - 1),
                   item_idx,
                   kv_head,
                   partials + kv_head * partial_floats,
                   thread_idx)) {
        bad_block.store(true, std::memory_order_relaxed);
      }
    }
  };
  if (total_items == 1) {
    work(0);
  } else {
    context.pool.Run(work);
  }
  if (bad_block.load(std::memory_order_relaxed)) {
    return absl::InvalidArgumentError(
        absl::StrCat("PagedAttention.batch.block_tables names a block that is not in 0 to ",
                     params.cache.num_blocks - 1));
  }
  if (plan.num_partials == 0) return absl::OkStatus();

  // One merge for each row and query head of the blocks that were split.
  const auto merge_block = [&](const AttentionPlan::Block& block, int64_t state, int32_t kv_head) {
    const int32_t num_partitions = block.partition_end - block.partition_begin;
    float* first = partials + kv_head * partial_floats +
                   (block.first_partial + state * num_partitions) * state_floats;
    const int64_t row = block.row_begin + state / shape.group;
    const int64_t head = int64_t{kv_head} * shape.group + state % shape.group;
    context.kernels.merge_partials(first,
                                   state_floats,
                                   num_partitions,
                                   shape.head_dim,
                                   shape.v_scale,
                                   shape.out + row * shape.out_stride + head * shape.head_dim);
  };
  const auto num_blocks = static_cast<int64_t>(plan.blocks.size());
  context.ParallelFor(num_blocks * num_kv_heads,
                      plan.num_partials * num_kv_heads * state_floats / 8,
                      [&](int64_t begin, int64_t end, int) {
                        for (int64_t i = begin; i < end; ++i) {
                          const AttentionPlan::Block& block = plan.blocks[i / num_kv_heads];
                          if (!block.is_split) continue;
                          for (int64_t state = 0; state < int64_t{block.num_rows} * shape.group;
                               ++state) {
                            merge_block(block, state, static_cast<int32_t>(i % num_kv_heads));
                          }
                        }
                      });
  return absl::OkStatus();
}

}  // namespace pagoda::kernels::cpu
