#include "daemon/server/memory_plan.h"

#include <string>

#include "absl/strings/str_join.h"
#include "engine/model/model_shard.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/device_fault.h"

namespace pagoda::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

// One token takes 2 (K, V) * 2 layers * 2 heads * 64 * 2 bytes = 1 KiB.
class MemoryPlanTest : public testing::Test {
 protected:
  MemoryPlanTest() {
    model_.architecture = "LlamaForCausalLM";
    model_.num_layers = 2;
    model_.hidden_size = 256;
    model_.intermediate_size = 512;
    model_.num_heads = 4;
    model_.num_kv_heads = 2;
    model_.head_dim = 64;
    model_.vocab_size = 1000;
    model_.max_position_embeddings = 2048;
    config_.mutable_engine()->set_block_size(16);
    config_.mutable_engine()->set_max_num_seqs(8);
    config_.mutable_engine()->set_max_num_batched_tokens(64);
    config_.mutable_engine()->set_kv_cache_memory_bytes(64 * kMiB);
    config_.mutable_worker()->set_device("cpu");
    config_.mutable_worker()->set_gpu_memory_utilization(0.5);
    hello_.set_total_memory_bytes(8 * kGiB);
    hello_.set_free_memory_bytes(4 * kGiB);
  }
  absl::StatusOr<MemoryPlan> Plan() {
    return PlanMemory({.config = &config_,
                       .model = &model_,
                       .dtype = DType::kBFloat16,
                       .max_model_len = 1024,
                       .hello = &hello_});
  }

  internal::v1::ServerConfig config_;
  engine::ModelConfig model_;
  internal::v1::WorkerHello hello_;
};

TEST_F(MemoryPlanTest, TakesWhatWasAskedFor) {
  const auto plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->kv.block_bytes, 16 * 1024u);
  EXPECT_EQ(plan->kv.num_blocks, 64 * kMiB / (16 * 1024));
  EXPECT_EQ(plan->kv.full_length_concurrency, 64.0);
  EXPECT_EQ(plan->weight_bytes, engine::WeightBytes(model_, DType::kBFloat16));
  const std::string lines = absl::StrJoin(plan->ToLines(), "\n");
  EXPECT_THAT(lines, HasSubstr("KV cache 64.0 MiB"));
  EXPECT_THAT(lines, HasSubstr("4096 blocks of 16 tokens"));
  EXPECT_THAT(lines, HasSubstr("64.0 sequences of 1024 tokens at once"));
}

// Each of four ranks has a query head and half of the ranks the same KV head.
TEST_F(MemoryPlanTest, AddsUpRanks) {
  const MemoryPlan alone = *Plan();
  config_.mutable_worker()->set_tensor_parallel_size(4);
  const auto plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->kv.block_bytes, 2 * alone.kv.block_bytes);
  EXPECT_EQ(plan->kv.num_blocks, alone.kv.num_blocks / 2);
  EXPECT_EQ(plan->reserve_bytes, 4 * alone.reserve_bytes);
  EXPECT_EQ(plan->weight_bytes, 4 * *engine::RankWeightBytes(model_, DType::kBFloat16, 4));
  EXPECT_GT(plan->weight_bytes, alone.weight_bytes);
  EXPECT_LT(plan->weight_bytes, alone.weight_bytes * 5 / 4);
  EXPECT_THAT(absl::StrJoin(plan->ToLines(), "\n"), HasSubstr("each of 4 ranks: weights "));
  EXPECT_THAT(plan->ToLines().back(), HasSubstr("KV cache 16.0 MiB"));
  config_.mutable_worker()->set_tensor_parallel_size(3);
  EXPECT_EQ(Plan().status().code(), absl::StatusCode::kInvalidArgument);
}

// Ranks on GPUs of their own have so much memory each; on one GPU they share it.
TEST_F(MemoryPlanTest, RanksOnGpus) {
  config_.mutable_engine()->set_kv_cache_memory_bytes(0);
  config_.mutable_worker()->set_device("cuda");
  hello_.set_free_memory_bytes(8 * kGiB);
  const MemoryPlan alone = *Plan();
  EXPECT_EQ(alone.collective_bytes, 0u);
  config_.mutable_worker()->set_tensor_parallel_size(2);
  for (const uint32_t second : {0u, 1u}) {
    config_.mutable_worker()->clear_devices();
    config_.mutable_worker()->add_devices(0);
    config_.mutable_worker()->add_devices(second);
    const MemoryPlan plan = *Plan();
    EXPECT_EQ(plan.total_memory_bytes, (1 + second) * alone.total_memory_bytes);
    EXPECT_GT(plan.collective_bytes, 16 * kMiB);
    const uint64_t taken =
        plan.weight_bytes + plan.activation_bytes + plan.collective_bytes + plan.kv.pool_bytes;
    EXPECT_LE(taken, plan.total_memory_bytes / 2);
    EXPECT_GT(taken, plan.total_memory_bytes / 2 - kMiB);
    EXPECT_THAT(plan.ToLines()[0], HasSubstr(", collectives "));
  }
}

TEST_F(MemoryPlanTest, UnaskedPoolsFollowTheDevice) {
  config_.mutable_engine()->set_kv_cache_memory_bytes(0);
  // No more than eight sequences of 1024 tokens can use.
  EXPECT_EQ(Plan()->kv.pool_bytes, 8 * kMiB);
  config_.mutable_worker()->set_device("sim");
  hello_.clear_free_memory_bytes();
  EXPECT_EQ(Plan()->kv.pool_bytes, 8 * kMiB);
  // Half of the GPU's memory, less what else goes there.
  config_.mutable_worker()->set_device("cuda");
  hello_.set_free_memory_bytes(8 * kGiB);
  const auto cuda = Plan();
  ASSERT_TRUE(cuda.ok()) << cuda.status();
  EXPECT_LE(cuda->kv.pool_bytes + cuda->weight_bytes + cuda->activation_bytes + cuda->reserve_bytes,
            4 * kGiB);
  EXPECT_GT(cuda->kv.pool_bytes, 2 * kGiB);
}

TEST_F(MemoryPlanTest, AGpuPoolShrinksToWhatIsFreeAndSaysSo) {
  config_.mutable_worker()->set_device("cuda");
  config_.mutable_engine()->set_kv_cache_memory_bytes(64 * kGiB);
  hello_.set_free_memory_bytes(3 * kGiB);
  const auto plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  const uint64_t sum =
      plan->kv.pool_bytes + plan->weight_bytes + plan->activation_bytes + plan->reserve_bytes;
  EXPECT_LE(sum, 3 * kGiB);
  EXPECT_GT(sum, 3 * kGiB - kMiB);
  EXPECT_THAT(absl::StrJoin(plan->ToLines(), "\n"),
              HasSubstr("--kv-cache-memory asks for 64.0 GiB, of which 3.0 GiB fit"));
  // Not even a block.
  hello_.set_free_memory_bytes(kMiB);
  const absl::Status none = Plan().status();
  EXPECT_EQ(DeviceFaultOf(none), DeviceFault::kNoMemory);
  EXPECT_THAT(std::string(none.message()), HasSubstr("more than the 1.0 MiB that are free"));
}

TEST_F(MemoryPlanTest, WhatDoesNotFitIsRefusedWithSizesAndFlags) {
  config_.mutable_engine()->set_kv_cache_memory_bytes(1024);
  const absl::Status no_block = Plan().status();
  EXPECT_EQ(no_block.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(no_block.message()),
              HasSubstr("one takes 16.0 KiB and 1.0 KiB were given"));

  config_.mutable_engine()->set_kv_cache_memory_bytes(5 * kGiB);
  const absl::Status no_room = Plan().status();
  EXPECT_EQ(no_room.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(no_room.message()), HasSubstr("KV cache 5.0 GiB"));
  EXPECT_THAT(std::string(no_room.message()), HasSubstr("more than the 4.0 GiB that are free"));
  EXPECT_THAT(std::string(no_room.message()), HasSubstr("--kv-cache-memory"));
}

TEST_F(MemoryPlanTest, SaysWhatWasMeasuredAndThatThePoolIsSmaller) {
  config_.mutable_worker()->set_device("cuda");
  const auto plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  internal::v1::ModelReady ready;
  ready.set_weight_bytes(kGiB);
  ready.set_activation_bytes(256 * kMiB);
  ready.set_taken_bytes(kGiB + 640 * kMiB);
  ready.set_kept_free_bytes(200 * kMiB);
  ready.set_kv_bytes(64 * kMiB);
  ready.set_num_kv_blocks(static_cast<uint32_t>(plan->kv.num_blocks));
  const std::string fits = MeasuredMemoryLine(*plan, ready);
  EXPECT_THAT(fits, HasSubstr("other buffers and kernels 384.0 MiB"));
  EXPECT_THAT(fits, HasSubstr("kept free for graphs 200.0 MiB; KV cache 64.0 MiB: 4096 blocks"));
  EXPECT_THAT(fits, Not(HasSubstr("planned")));
  ready.set_num_kv_blocks(4000);
  EXPECT_THAT(MeasuredMemoryLine(*plan, ready),
              HasSubstr("4000 blocks of 4096 planned, as that is what fits"));
}

TEST(FormatBytesTest, PicksAUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(3 * kGiB), "3.0 GiB");
}

}  // namespace
}  // namespace pagoda::daemon
