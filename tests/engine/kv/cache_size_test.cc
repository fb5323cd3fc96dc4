#include "engine/kv/cache_size.h"

#include <gtest/gtest.h>

namespace pagoda::engine {
namespace {

// Llama-3.1-8B: 32 layers, 8 KV heads of 128; 131,072 bytes a token in bf16.
const KvSpec kLlama8b = {
    .dtype = DType::kBFloat16, .num_layers = 32, .num_kv_heads = 8, .head_dim = 128};

TEST(CacheSizeTest, BlockBytes) {
  EXPECT_EQ(KvBlockBytes(kLlama8b, 1), 131072u);
  EXPECT_EQ(KvBlockBytes(kLlama8b, 64), 64u * 131072u);
  KvSpec scaled = kLlama8b;
  scaled.scale_bytes = 4;
  EXPECT_EQ(KvBlockBytes(scaled, 1), 131072u + 2u * 4 * 8 * 32);
}

TEST(CacheSizeTest, BlocksPerSequence) {
  EXPECT_EQ(KvBlocksPerSequence(kLlama8b, 16, 1), 1u);
  EXPECT_EQ(KvBlocksPerSequence(kLlama8b, 16, 16), 1u);
  EXPECT_EQ(KvBlocksPerSequence(kLlama8b, 16, 17), 2u);
  KvSpec window = kLlama8b;
  window.kind = KvSpec::Kind::kSlidingWindow;
  window.window = 32;
  EXPECT_EQ(KvBlocksPerSequence(window, 16, 20), 2u);
  EXPECT_EQ(KvBlocksPerSequence(window, 16, 1000), 3u);
}

TEST(CacheSizeTest, PoolPlan) {
  const KvPoolPlan plan = PlanKvPool(kLlama8b, 64, 1024, uint64_t{10} << 30);
  EXPECT_EQ(plan.block_bytes, 8u << 20);
  EXPECT_EQ(plan.num_blocks, 1280u);
  EXPECT_EQ(plan.pool_bytes, uint64_t{10} << 30);
  EXPECT_DOUBLE_EQ(plan.full_length_concurrency, 80.0);
  EXPECT_EQ(PlanKvPool(kLlama8b, 64, 1024, 1000).num_blocks, 0u);
  EXPECT_EQ(PlanKvPool(KvSpec{}, 64, 1024, 1000).num_blocks, 0u);
}

}  // namespace
}  // namespace pagoda::engine
