#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops/attention.h"

namespace pagoda::kernels::cpu {

// How PagedAttention divides a batch: blocks of rows, each one item, or one item a partition of its
// keys. Items are for one KV head; every head has the same.
struct AttentionPlan {
  struct Block {
    int32_t seq = 0;
    int32_t row_begin = 0;
    int32_t num_rows = 0;
    int32_t first_position = 0;
    int32_t partition_begin = 0;
    int32_t partition_end = 0;
    bool is_split = false;
    int64_t first_item = 0;
    int64_t first_partial = 0;  // in states
  };
  std::vector<Block> blocks;
  int32_t max_rows = 0;
  int64_t num_items = 0;
  int64_t num_partials = 0;
};

AttentionPlan PlanAttention(const AttentionBatch& batch,
                            int32_t window,
                            int32_t group,
                            int32_t num_kv_heads,
                            int num_threads);

}  // namespace pagoda::kernels::cpu
