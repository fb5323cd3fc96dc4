#include "daemon/server/metrics_collector.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"
#include "tests/daemon/server/exposition.h"

namespace pagoda::daemon {
namespace {

using pagoda::testing::Exposition;
using pagoda::testing::LintExposition;
using pagoda::testing::ParseExposition;
using pagoda::testing::Sum;
using ::testing::IsEmpty;

class MetricsCollectorTest : public ::testing::Test {
 protected:
  std::string Text() const { return prometheus::TextSerializer().Serialize(collector_.Collect()); }
  Exposition Scrape() const {
    auto exposition = ParseExposition(Text());
    EXPECT_TRUE(exposition.ok()) << exposition.status();
    return exposition.ok() ? *exposition : Exposition();
  }

  engine::EngineMetrics engine_;
  ServerMetrics server_;
  ServingState state_ = ServingState::kLoading;
  MetricsCollector collector_{&engine_, &server_, [this] { return state_; }};
};

TEST_F(MetricsCollectorTest, CleanBeforeAnythingHappened) {
  EXPECT_THAT(LintExposition(Scrape(), {"pagoda_", "process_"}), IsEmpty());
}

TEST_F(MetricsCollectorTest, HoldsTheFamiliesOfTheContract) {
  const Exposition exposition = Scrape();
  for (const char* name : {"pagoda_build_info",
                           "pagoda_model_info",
                           "pagoda_kv_cache_config_info",
                           "pagoda_up_state",
                           "pagoda_requests_running",
                           "pagoda_requests_waiting",
                           "pagoda_requests_swapped",
                           "pagoda_requests_received_total",
                           "pagoda_requests_finished_total",
                           "pagoda_requests_rejected_total",
                           "pagoda_prompt_tokens_total",
                           "pagoda_generation_tokens_total",
                           "pagoda_kv_blocks",
                           "pagoda_kv_cache_usage_ratio",
                           "pagoda_prefix_cache_query_tokens_total",
                           "pagoda_prefix_cache_hit_tokens_total",
                           "pagoda_preemptions_total",
                           "pagoda_kv_evictions_total",
                           "pagoda_time_to_first_token_seconds",
                           "pagoda_inter_token_latency_seconds",
                           "pagoda_request_duration_seconds",
                           "pagoda_request_queue_seconds",
                           "pagoda_request_prefill_seconds",
                           "pagoda_request_decode_seconds",
                           "pagoda_request_tokenize_seconds",
                           "pagoda_request_prompt_tokens",
                           "pagoda_request_generation_tokens",
                           "pagoda_spec_drafts_total",
                           "pagoda_spec_draft_tokens_total",
                           "pagoda_spec_accepted_tokens_total",
                           "pagoda_step_duration_seconds",
                           "pagoda_step_tokens",
                           "pagoda_step_batch_size",
                           "pagoda_load_seconds",
                           "pagoda_stream_stalls_total",
                           "pagoda_stream_messages_total",
                           "pagoda_stream_coalesced_tokens_total",
                           "pagoda_cancel_to_free_seconds",
                           "pagoda_grpc_streams",
                           "pagoda_http_connections",
                           "pagoda_http_streams",
                           "process_cpu_seconds_total",
                           "process_resident_memory_bytes",
                           "process_open_fds",
                           "process_max_fds",
                           "process_start_time_seconds"}) {
    EXPECT_EQ(exposition.count(name), 1u) << name;
  }
}

TEST_F(MetricsCollectorTest, TurnsCountsIntoSamples) {
  engine_.prompt_tokens_computed.Add(10);
  engine_.prompt_tokens_cached.Add(4);
  engine_.spec_drafts.Add(2);
  engine_.spec_draft_tokens.Add(9);
  engine_.spec_accepted_tokens.Add(7);
  engine_.kv_blocks_total.Set(8);
  engine_.kv_blocks_used.Set(2);
  engine_.inter_token_seconds.Observe(0.0115, 3);
  engine_.inter_token_seconds.Observe(1e9);
  server_.of(Api::kGrpc).requests_received.store(3);
  server_.of(Api::kHttp).requests_received.store(2);
  server_.of(Api::kGrpc).CountFinished(engine::Outcome::kLength, grpc::StatusCode::OK);
  server_.of(Api::kHttp)
      .CountFinished(engine::Outcome::kRejected, grpc::StatusCode::RESOURCE_EXHAUSTED);
  server_.CountRejected(RejectReason::kQueueFull);
  server_.stream_first_token_seconds.Observe(0.02);
  state_ = ServingState::kReady;
  const Exposition exposition = Scrape();
  EXPECT_EQ(Sum(exposition, "pagoda_prompt_tokens_total"), 14);
  EXPECT_EQ(Sum(exposition, "pagoda_prompt_tokens_total", {{"source", "cached"}}), 4);
  EXPECT_EQ(Sum(exposition, "pagoda_spec_drafts_total"), 2);
  EXPECT_EQ(Sum(exposition, "pagoda_spec_draft_tokens_total"), 9);
  EXPECT_EQ(Sum(exposition, "pagoda_spec_accepted_tokens_total"), 7);
  EXPECT_EQ(Sum(exposition, "pagoda_kv_cache_usage_ratio"), 0.25);
  EXPECT_EQ(Sum(exposition, "pagoda_inter_token_latency_seconds_count"), 4);
  EXPECT_EQ(Sum(exposition, "pagoda_inter_token_latency_seconds_bucket", {{"le", "0.0125"}}), 3);
  EXPECT_EQ(Sum(exposition, "pagoda_requests_received_total", {{"api", "grpc"}}), 3);
  EXPECT_EQ(Sum(exposition, "pagoda_requests_received_total", {{"api", "http"}}), 2);
  EXPECT_EQ(Sum(exposition,
                "pagoda_requests_finished_total",
                {{"api", "grpc"}, {"outcome", "length"}, {"code", "OK"}}),
            1);
  EXPECT_EQ(Sum(exposition,
                "pagoda_requests_finished_total",
                {{"api", "http"}, {"outcome", "rejected"}, {"code", "RESOURCE_EXHAUSTED"}}),
            1);
  EXPECT_EQ(Sum(exposition, "pagoda_requests_rejected_total", {{"reason", "queue_full"}}), 1);
  EXPECT_EQ(Sum(exposition, "pagoda_time_to_first_token_seconds_count", {{"stream", "true"}}), 1);
  EXPECT_EQ(Sum(exposition, "pagoda_up_state", {{"state", "ready"}}), 1);
  EXPECT_EQ(Sum(exposition, "pagoda_up_state"), 1);
  EXPECT_GT(Sum(exposition, "process_resident_memory_bytes"), 1e6);
  EXPECT_GT(Sum(exposition, "process_start_time_seconds"), 1.5e9);
  EXPECT_GT(Sum(exposition, "process_open_fds"), 2);
}

TEST_F(MetricsCollectorTest, TellsWhichProtocolACallSpoke) {
  server_.of(Api::kVllmGrpc).requests_received.store(2);
  server_.of(Api::kVllmGrpc).open_calls.store(1);
  server_.of(Api::kGrpc).open_calls.store(3);
  server_.of(Api::kHttp).open_calls.store(7);
  const Exposition exposition = Scrape();
  EXPECT_EQ(Sum(exposition, "pagoda_requests_received_total", {{"api", "vllm_grpc"}}), 2);
  EXPECT_EQ(Sum(exposition, "pagoda_grpc_streams"), 4);
  EXPECT_EQ(Sum(exposition, "pagoda_http_streams"), 7);
}

// Of several replicas the families are the sums, and others have a label.
TEST(MetricsOfReplicasTest, SumsAndSharesOfEach) {
  engine::EngineMetrics first, second;
  first.requests_running.Set(3);
  second.requests_running.Set(4);
  first.kv_blocks_total.Set(10);
  second.kv_blocks_total.Set(10);
  second.kv_blocks_used.Set(5);
  second.worker_restarts[0].Add(2);
  second.requests_given_away.Add(6);
  ServerMetrics server;
  MetricsCollector collector(
      EngineMetricsReader({&first, &second}), &server, [] { return ServingState::kReady; });
  const auto scrape = [&] {
    return ParseExposition(prometheus::TextSerializer().Serialize(collector.Collect())).value();
  };
  EXPECT_EQ(Sum(scrape(), "pagoda_requests_running"), 7);
  EXPECT_EQ(scrape().count("pagoda_replica_up"), 0u);
  collector.SetReplicas([&] {
    return std::vector<ReplicaStats>{
        {.has_workers = true, .engine = &first, .num_routed_by_prefix = 8},
        {.has_workers = false, .engine = &second, .num_routed_by_load = 9, .num_taken_over = 1}};
  });
  const Exposition exposition = scrape();
  EXPECT_THAT(LintExposition(exposition, {"pagoda_", "process_"}), IsEmpty());
  const auto of = [&](const char* name, const char* replica) {
    return Sum(exposition, name, {{"replica", replica}});
  };
  EXPECT_EQ(Sum(exposition, "pagoda_requests_running"), 7);
  EXPECT_EQ(Sum(exposition, "pagoda_kv_cache_usage_ratio"), 0.25);
  EXPECT_EQ(of("pagoda_replica_up", "0"), 1);
  EXPECT_EQ(of("pagoda_replica_up", "1"), 0);
  EXPECT_EQ(of("pagoda_replica_requests_running", "1"), 4);
  EXPECT_EQ(of("pagoda_replica_kv_cache_usage_ratio", "1"), 0.5);
  EXPECT_EQ(of("pagoda_replica_worker_restarts_total", "1"), 2);
  EXPECT_EQ(of("pagoda_replica_requests_given_away_total", "1"), 6);
  EXPECT_EQ(of("pagoda_replica_requests_routed_total", "0"), 8);
  EXPECT_EQ(Sum(exposition,
                "pagoda_replica_requests_routed_total",
                {{"replica", "1"}, {"reason", "taken_over"}}),
            1);
}

// B106: names with everything that a label must escape.
TEST_F(MetricsCollectorTest, B106HostileModelNames) {
  for (const std::string name :
       {"a\"b", "a\\b", "a\nb", "\xc3\xa9\xf0\x9f\x98\x8d", "", "a}{,=b"}) {
    collector_.SetInfo({.model = name, .architecture = name, .revision = name});
    const Exposition exposition = Scrape();
    EXPECT_THAT(LintExposition(exposition, {"pagoda_", "process_"}), IsEmpty());
    EXPECT_EQ(Sum(exposition, "pagoda_model_info", {{"model", name}}), 1) << name;
  }
}

TEST(ExpositionTest, RefusesWhatIsNotStrict) {
  for (const char* text :
       {"",
        "a 1\n",
        "# HELP a x\n# TYPE a gauge\na 1",
        "# HELP a x\n# TYPE a gauge\na{b=\"c} 1\n",
        "# HELP a x\n# TYPE a gauge\na{b=\"\\x\"} 1\n",
        "# HELP a x\n# TYPE a gauge\na one\n",
        "# HELP a x\n# TYPE a gauge\na 1\na 1\n",
        "# HELP a x\n# TYPE a gauge\nb 1\n",
        "# HELP a x\n# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\n"
        "a_sum 1\na_count 1\n"}) {
    EXPECT_FALSE(ParseExposition(text).ok()) << text;
  }
}

}  // namespace
}  // namespace pagoda::daemon
