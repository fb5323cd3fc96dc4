#include "daemon/server/vllm/server_description.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/fake_model.h"
#include "tests/fixtures/model_files.h"

namespace pagoda::daemon {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kSecondNs = 1'000'000'000;

TEST(ServerDescriptionTest, HealthFollowsTheState) {
  EXPECT_TRUE(DescribeHealth(ServingState::kReady).healthy());
  for (const ServingState state : {ServingState::kLoading,
                                   ServingState::kRecovering,
                                   ServingState::kDraining,
                                   ServingState::kFailed})
    EXPECT_FALSE(DescribeHealth(state).healthy());
  EXPECT_EQ(DescribeHealth(ServingState::kDraining).message(), "draining");
  EXPECT_EQ(DescribeHealth(ServingState::kFailed).message(), "failed");
}

TEST(ServerDescriptionTest, TheModelAsGatewaysKnowIt) {
  const fixtures::TemporaryDir dir;
  dir.Write("config.json", R"({"model_type": "llama", "pad_token_id": 12})");
  ServedModel model = MakeFakeModel();
  model.generation.temperature = 0.6f;
  model.generation.top_k = 20;
  const engine_pb::GetModelInfoResponse info = DescribeForGateway(model, dir.path());
  EXPECT_EQ(info.model_path(), dir.path());
  EXPECT_EQ(info.tokenizer_path(), dir.path());
  EXPECT_TRUE(info.is_generation());
  EXPECT_FALSE(info.supports_vision());
  EXPECT_EQ(info.max_context_length(), static_cast<uint32_t>(kFakeContext));
  EXPECT_EQ(info.max_req_input_len(), kFakeContext - 1);
  EXPECT_EQ(info.vocab_size(), static_cast<uint32_t>(kFakeModelIds));
  EXPECT_EQ(info.served_model_name(), "fake");
  EXPECT_EQ(info.model_type(), "llama");
  EXPECT_THAT(info.architectures(), ElementsAre("LlamaForCausalLM"));
  EXPECT_THAT(info.eos_token_ids(), ElementsAre(kFakeEos));
  EXPECT_EQ(info.bos_token_id(), kFakeBos);
  EXPECT_EQ(info.pad_token_id(), 12);
  EXPECT_EQ(info.default_sampling_params_json(), R"({"temperature": 0.6, "top_k": 20})");
}

TEST(ServerDescriptionTest, ModelsThatSayLittle) {
  ServedModel model = MakeFakeModel();
  model.tokenizer.reset();
  const engine_pb::GetModelInfoResponse info = DescribeForGateway(model, "/nowhere");
  EXPECT_EQ(info.tokenizer_path(), "");
  EXPECT_EQ(info.model_type(), "");
  EXPECT_EQ(info.default_sampling_params_json(), "");
  model.generation.do_sample = false;
  model.generation.temperature = 0.6f;
  EXPECT_EQ(DescribeForGateway(model, "").default_sampling_params_json(), R"({"temperature": 0})");
  // Numbers that no id can be.
  const fixtures::TemporaryDir dir;
  dir.Write("config.json", R"({"model_type": 3, "pad_token_id": 1e300})");
  EXPECT_EQ(DescribeForGateway(model, dir.path()).pad_token_id(), 0);
}

TEST(ServerDescriptionTest, LoadIsWhatTheEngineCounts) {
  engine::EngineMetrics metrics;
  const ServedModel model = MakeFakeModel();
  EXPECT_EQ(DescribeLoad(metrics, model).token_usage(), 0);
  metrics.requests_running.Set(4);
  metrics.requests_waiting.Set(2);
  metrics.requests_preempted_waiting.Set(1);
  metrics.kv_blocks_total.Set(64);
  metrics.kv_blocks_used.Set(16);
  metrics.kv_blocks_cached.Set(40);
  metrics.prefix_query_tokens.Add(200);
  metrics.prefix_hit_tokens.Add(50);
  const engine_pb::SchedulerLoad load = DescribeLoad(metrics, model);
  EXPECT_EQ(load.num_running_reqs(), 4);
  EXPECT_EQ(load.num_waiting_reqs(), 3);
  EXPECT_EQ(load.num_total_reqs(), 7);
  EXPECT_EQ(load.num_used_tokens(), 16 * 16);
  EXPECT_EQ(load.max_total_num_tokens(), 64 * 16);
  EXPECT_EQ(load.token_usage(), 0.25);
  EXPECT_EQ(load.cache_hit_rate(), 0.25);
  EXPECT_EQ(load.max_running_requests(), 8);
  EXPECT_EQ(load.utilization(), 0.5);
}

TEST(ThroughputMeterTest, CountsTheLastSeconds) {
  ThroughputMeter meter(0);
  EXPECT_EQ(meter.Rate(1, 0), 0);  // too soon to say
  EXPECT_DOUBLE_EQ(meter.Rate(2 * kSecondNs, 200), 100);
  EXPECT_DOUBLE_EQ(meter.Rate(2 * kSecondNs + 1, 900), 100);
  EXPECT_DOUBLE_EQ(meter.Rate(4 * kSecondNs, 600), 150);
  // The first seconds count no more.
  EXPECT_DOUBLE_EQ(meter.Rate(9 * kSecondNs, 600), 0);
  // Asked seldom: what was since.
  EXPECT_DOUBLE_EQ(meter.Rate(109 * kSecondNs, 1600), 10);
}

}  // namespace
}  // namespace pagoda::daemon
