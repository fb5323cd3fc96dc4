#include "engine/kv/cache_size.h"

#include <algorithm>

namespace pagoda::engine {
namespace {

// Ids are 32 bits wide; the largest value marks "none" in linked lists, and one more index is a
// list's sentinel.
constexpr uint64_t kMaxBlocks = UINT32_MAX - 2;

uint64_t CeilDiv(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

}  // namespace

uint64_t KvBlockBytes(const KvSpec& spec, int32_t block_size) {
  const uint64_t head_bytes =
      static_cast<uint64_t>(spec.head_dim) * DTypeBytes(spec.dtype) + spec.scale_bytes;
  return 2 * head_bytes * spec.num_kv_heads * spec.num_layers * block_size;
}

uint64_t KvBlocksPerSequence(const KvSpec& spec, int32_t block_size, int32_t num_tokens) {
  const uint64_t all = CeilDiv(num_tokens, block_size);
  if (!spec.window.has_value()) return all;
  // A window that begins inside a block touches one block more than it fills.
  return std::min(all, CeilDiv(*spec.window, block_size) + 1);
}

KvPoolPlan PlanKvPool(const KvSpec& spec,
                      int32_t block_size,
                      int32_t max_model_len,
                      uint64_t memory_bytes) {
  KvPoolPlan plan;
  plan.block_bytes = KvBlockBytes(spec, block_size);
  plan.num_blocks =
      plan.block_bytes == 0 ? 0 : std::min(memory_bytes / plan.block_bytes, kMaxBlocks);
  plan.pool_bytes = plan.num_blocks * plan.block_bytes;
  const uint64_t per_sequence = KvBlocksPerSequence(spec, block_size, max_model_len);
  if (per_sequence > 0) {
    plan.full_length_concurrency = static_cast<double>(plan.num_blocks) / per_sequence;
  }
  return plan;
}

}  // namespace pagoda::engine
