#include "daemon/server/vllm/metric_aliases.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"
#include "tests/daemon/server/exposition.h"

namespace pagoda::daemon {
namespace {

using pagoda::testing::Exposition;
using pagoda::testing::ParseExposition;
using pagoda::testing::Sum;

class MetricAliasesTest : public ::testing::Test {
 protected:
  Exposition Scrape(uint64_t max_context_tokens = 2048) const {
    Families families;
    WriteVllmAliases(engine_,
                     server_,
                     {.model = "m",
                      .dtype = "bfloat16",
                      .max_context_tokens = max_context_tokens,
                      .kv_block_tokens = 16,
                      .num_kv_blocks = 99},
                     &families);
    auto exposition = ParseExposition(prometheus::TextSerializer().Serialize(families.Take()));
    EXPECT_TRUE(exposition.ok()) << exposition.status();
    return exposition.ok() ? *exposition : Exposition();
  }
  // The finite edges of a histogram.
  static std::set<double> Edges(const Exposition& exposition, const std::string& family) {
    std::set<double> edges;
    for (const auto& sample : exposition.at(family).samples) {
      const auto le = sample.labels.find("le");
      double edge = 0;
      if (le == sample.labels.end() || le->second == "+Inf") continue;
      EXPECT_TRUE(absl::SimpleAtod(le->second, &edge));
      edges.insert(edge);
    }
    return edges;
  }

  engine::EngineMetrics engine_;
  ServerMetrics server_;
};

TEST_F(MetricAliasesTest, WhatEndpointPickersAskFor) {
  engine_.requests_running.Set(3);
  engine_.requests_waiting.Set(4);
  engine_.requests_preempted_waiting.Set(1);
  engine_.kv_blocks_total.Set(8);
  engine_.kv_blocks_used.Set(2);
  const Exposition exposition = Scrape();
  const std::map<std::string, std::string> labels = {{"model_name", "m"}, {"engine", "0"}};
  EXPECT_EQ(Sum(exposition, "vllm:num_requests_running", labels), 3);
  EXPECT_EQ(Sum(exposition, "vllm:num_requests_waiting", labels), 5);
  EXPECT_EQ(Sum(exposition, "vllm:kv_cache_usage_perc", labels), 0.25);
  EXPECT_EQ(Sum(exposition,
                "vllm:cache_config_info",
                {{"block_size", "16"}, {"num_gpu_blocks", "99"}, {"engine", "0"}}),
            1);
  EXPECT_GT(Sum(exposition, "vllm:lora_requests_info", {{"max_lora", "0"}}), 1.5e9);
}

TEST_F(MetricAliasesTest, CountersFollowOurs) {
  engine_.prompt_tokens_computed.Add(10);
  engine_.prompt_tokens_cached.Add(4);
  engine_.generation_tokens.Add(7);
  engine_.preemptions.Add(2);
  engine_.prefix_query_tokens.Add(14);
  engine_.prefix_hit_tokens.Add(5);
  for (size_t outcome = 0; outcome < engine::kNumOutcomes; ++outcome)
    engine_.requests_finished[outcome].Add(outcome + 1);
  const Exposition exposition = Scrape();
  EXPECT_EQ(Sum(exposition, "vllm:prompt_tokens_total"), 14);
  EXPECT_EQ(Sum(exposition, "vllm:generation_tokens_total"), 7);
  EXPECT_EQ(Sum(exposition, "vllm:num_preemptions_total"), 2);
  EXPECT_EQ(Sum(exposition, "vllm:prefix_cache_queries_total"), 14);
  EXPECT_EQ(Sum(exposition, "vllm:prefix_cache_hits_total"), 5);
  // stop 1, length 2, cancelled 3 and deadline 4, error 6; rejected ones were never taken.
  EXPECT_EQ(Sum(exposition, "vllm:request_success_total", {{"finished_reason", "stop"}}), 1);
  EXPECT_EQ(Sum(exposition, "vllm:request_success_total", {{"finished_reason", "length"}}), 2);
  EXPECT_EQ(Sum(exposition, "vllm:request_success_total", {{"finished_reason", "abort"}}), 7);
  EXPECT_EQ(Sum(exposition, "vllm:request_success_total", {{"finished_reason", "error"}}), 6);
}

// Each edge of an alias is one of ours: otherwise counts would be on the wrong side of it.
TEST_F(MetricAliasesTest, EveryEdgeIsOneOfOurs) {
  const auto contains = [](const std::vector<double>& ours, const std::set<double>& theirs) {
    return std::includes(ours.begin(), ours.end(), theirs.begin(), theirs.end());
  };
  const Exposition exposition = Scrape(/*max_context_tokens=*/3'000'000);
  const std::map<std::string, std::vector<double>> ours = {
      {"vllm:time_to_first_token_seconds", engine::TimeToFirstTokenBuckets()},
      {"vllm:inter_token_latency_seconds", engine::InterTokenBuckets()},
      {"vllm:request_time_per_output_token_seconds", engine::InterTokenBuckets()},
      {"vllm:e2e_request_latency_seconds", engine::RequestPhaseBuckets()},
      {"vllm:request_queue_time_seconds", engine::RequestPhaseBuckets()},
      {"vllm:request_prefill_time_seconds", engine::RequestPhaseBuckets()},
      {"vllm:request_decode_time_seconds", engine::RequestPhaseBuckets()},
      {"vllm:request_inference_time_seconds", engine::RequestPhaseBuckets()},
      {"vllm:request_prompt_tokens", engine::TokenCountBuckets()},
      {"vllm:request_generation_tokens", engine::TokenCountBuckets()},
      {"vllm:request_params_max_tokens", engine::TokenCountBuckets()},
      {"vllm:request_params_n", engine::TokenCountBuckets()},
      {"vllm:iteration_tokens_total", engine::TokenCountBuckets()}};
  size_t num_histograms = 0;
  for (const auto& [name, family] : exposition)
    num_histograms += family.type == "histogram" ? 1 : 0;
  EXPECT_EQ(num_histograms, ours.size());
  for (const auto& [name, edges] : ours) {
    EXPECT_FALSE(Edges(exposition, name).empty()) << name;
    EXPECT_TRUE(contains(edges, Edges(exposition, name))) << name;
  }
}

TEST_F(MetricAliasesTest, CountsStayBelowTheirEdges) {
  for (const double seconds : {0.0005, 0.001, 0.002, 0.03, 0.25, 0.26, 100.0, 1e6}) {
    server_.stream_first_token_seconds.Observe(seconds);
    server_.unary_first_token_seconds.Observe(seconds);
  }
  const Exposition exposition = Scrape();
  const std::string name = "vllm:time_to_first_token_seconds";
  const std::map<double, double> expected = {{.001, 4},
                                             {.005, 6},
                                             {.02, 6},
                                             {.04, 8},
                                             {.1, 8},
                                             {.25, 10},
                                             {.5, 12},
                                             {80, 12},
                                             {160, 14},
                                             {2560, 14}};
  for (const auto& sample : exposition.at(name).samples) {
    const auto le = sample.labels.find("le");
    double edge = 0;
    if (le == sample.labels.end() || !absl::SimpleAtod(le->second, &edge)) continue;
    const auto wanted = expected.find(edge);
    if (wanted != expected.end()) {
      EXPECT_EQ(sample.value, wanted->second) << le->second;
    }
  }
  EXPECT_EQ(Sum(exposition, name + "_count"), 16);
  EXPECT_NEAR(Sum(exposition, name + "_sum"), 2 * (1e6 + 100.5435), 1e-3);
}

TEST_F(MetricAliasesTest, LengthsEndAtTheContext) {
  EXPECT_THAT(Edges(Scrape(2048), "vllm:request_prompt_tokens"),
              ::testing::ElementsAre(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000));
}

}  // namespace
}  // namespace pagoda::daemon
