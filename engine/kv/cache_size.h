#pragma once

#include <cstdint>

#include "absl/types/optional.h"
#include "kernels/base/dtype.h"

namespace pagoda::engine {

// What the layers of one KV group keep: equal window, equal bytes.
struct KvSpec {
  enum class Kind { kFull, kSlidingWindow };

  Kind kind = Kind::kFull;
  DType dtype = DType::kBFloat16;
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t scale_bytes = 0;         // per token, head and K or V; 0: not quantised
  absl::optional<int32_t> window;  // tokens; set for kSlidingWindow
};

// Bytes of one block of `block_size` tokens, K and V, over the layers of the group.
uint64_t KvBlockBytes(const KvSpec& spec, int32_t block_size);

// Blocks that one sequence of `num_tokens` holds at most.
uint64_t KvBlocksPerSequence(const KvSpec& spec, int32_t block_size, int32_t num_tokens);

struct KvPoolPlan {
  uint64_t block_bytes = 0;
  uint64_t num_blocks = 0;
  uint64_t pool_bytes = 0;
  // Sequences of full length that fit at once.
  double full_length_concurrency = 0.0;
};

// How many blocks fit into `memory_bytes`, none more than a 32-bit id can name.
KvPoolPlan PlanKvPool(const KvSpec& spec,
                      int32_t block_size,
                      int32_t max_model_len,
                      uint64_t memory_bytes);

}  // namespace pagoda::engine
