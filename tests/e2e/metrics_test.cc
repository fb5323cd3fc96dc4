// What /metrics says is what clients saw.

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/exposition.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"
#include "tests/fixtures/context_model.h"

namespace pagoda::e2e::metrics_test {
namespace {

using pagoda::testing::Exposition;
using pagoda::testing::LintExposition;
using pagoda::testing::ParseExposition;
using pagoda::testing::Sum;
using ::testing::IsEmpty;

constexpr int kTokenBytes = 2 * 2 * 2 * 64 * 4;

class Metrics : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> flags) {
    auto daemon = TestDaemon::Start({.model_dir = model_.path(), .flags = std::move(flags)});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }
  Exposition Scrape() const {
    const auto text = daemon_->ScrapeMetrics();
    EXPECT_TRUE(text.ok()) << text.status();
    auto exposition = ParseExposition(text.value_or(""));
    EXPECT_TRUE(exposition.ok()) << exposition.status();
    return exposition.ok() ? *exposition : Exposition();
  }

  const fixtures::TemporaryDir model_ = fixtures::WriteModelDir(fixtures::ContextModel({}));
  std::unique_ptr<TestDaemon> daemon_;
};

TEST_F(Metrics, ReconcileWithWhatClientsSaw) {
  Start({"--block-size=4", "--max-num-seqs=4"});
  uint64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, num_messages = 0;
  const int kNumCalls = 20;
  for (int i = 0; i < kNumCalls; ++i) {
    v1::GenerateRequest request =
        IdsRequest(std::vector<uint32_t>(static_cast<size_t>(5 + i % 3 * 8), 7), 6);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_output()->set_n(1 + static_cast<uint32_t>(i % 2));
    const CallResult result =
        i % 2 == 0 ? Generate(daemon_->stub(), request) : StreamGenerate(daemon_->stub(), request);
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    prompt_tokens += result.started.prompt_tokens();
    cached_tokens += result.started.cached_tokens();
    num_messages += static_cast<uint64_t>(result.num_messages);
    for (const auto& [index, sequence] : result.sequences) {
      EXPECT_EQ(sequence.finished.usage().completion_tokens(), sequence.token_ids.size());
      output_tokens += sequence.token_ids.size();
    }
  }
  EXPECT_FALSE(Generate(daemon_->stub(), IdsRequest({}, 1)).status.ok());
  const Exposition metrics = Scrape();
  EXPECT_THAT(LintExposition(metrics, {"pagoda_", "process_"}), IsEmpty());
  EXPECT_EQ(Sum(metrics, "pagoda_prompt_tokens_total"), prompt_tokens);
  EXPECT_EQ(Sum(metrics, "pagoda_prompt_tokens_total", {{"source", "cached"}}), cached_tokens);
  EXPECT_GT(cached_tokens, 0u);
  EXPECT_EQ(Sum(metrics, "pagoda_generation_tokens_total"), output_tokens);
  EXPECT_EQ(Sum(metrics, "pagoda_stream_messages_total"), num_messages);
  EXPECT_EQ(Sum(metrics, "pagoda_requests_received_total"), kNumCalls + 1);
  EXPECT_EQ(Sum(metrics, "pagoda_requests_finished_total"), kNumCalls + 1);
  EXPECT_EQ(Sum(metrics, "pagoda_requests_finished_total", {{"outcome", "length"}, {"code", "OK"}}),
            kNumCalls);
  EXPECT_EQ(Sum(metrics, "pagoda_requests_finished_total", {{"code", "INVALID_ARGUMENT"}}), 1);
  EXPECT_EQ(Sum(metrics, "pagoda_requests_rejected_total", {{"reason", "invalid"}}), 1);
  EXPECT_EQ(Sum(metrics, "pagoda_time_to_first_token_seconds_count"), kNumCalls);
  EXPECT_EQ(Sum(metrics, "pagoda_request_duration_seconds_count"), kNumCalls);
  EXPECT_EQ(Sum(metrics, "pagoda_request_queue_seconds_count"), kNumCalls);
  EXPECT_EQ(Sum(metrics, "pagoda_request_prompt_tokens_sum"), prompt_tokens);
  EXPECT_EQ(Sum(metrics, "pagoda_request_generation_tokens_sum"), output_tokens);
  EXPECT_EQ(Sum(metrics, "pagoda_requests_running"), 0);
  EXPECT_EQ(Sum(metrics, "pagoda_kv_blocks", {{"state", "used"}}), 0);
  EXPECT_EQ(Sum(metrics, "pagoda_up_state", {{"state", "ready"}}), 1);
}

// B101: counters never go back and nothing is negative, whatever happens while scraping.
TEST_F(Metrics, B101ScrapedThroughPreemptionAbortsAndHits) {
  Start({"--block-size=4", absl::StrCat("--kv-cache-memory=", 16 * 4 * kTokenBytes)});
  std::atomic<bool> stop{false};
  std::thread load([&] {
    std::vector<std::thread> clients;
    for (int c = 0; c < 6; ++c) {
      clients.emplace_back([&, c] {
        const auto stub = daemon_->NewStub();
        for (int i = 0; i < 15; ++i) {
          v1::GenerateRequest request =
              IdsRequest(std::vector<uint32_t>(20, static_cast<uint32_t>(c)), 24);
          request.mutable_stopping()->set_ignore_eos(true);
          request.mutable_output()->set_n(1 + static_cast<uint32_t>(i % 2));
          OpenStream stream(*stub, request);
          if (i % 5 == 4) {
            stream.Read();
            stream.Cancel();
          }
          stream.Finish();
        }
      });
    }
    for (std::thread& client : clients) client.join();
    stop.store(true);
  });
  Exposition before = Scrape();
  int num_scrapes = 0;
  while (!stop.load()) {
    const Exposition now = Scrape();
    ++num_scrapes;
    EXPECT_THAT(LintExposition(now, {"pagoda_", "process_"}), IsEmpty());
    for (const auto& [name, family] : before) {
      if (family.type != "counter" || now.count(name) == 0) continue;
      for (const auto& sample : family.samples) {
        EXPECT_GE(Sum(now, name, sample.labels), sample.value) << name;
      }
    }
    before = now;
  }
  load.join();
  EXPECT_GT(num_scrapes, 1);
  EXPECT_GT(Sum(Scrape(), "pagoda_preemptions_total"), 0);
}

// B106: names that clients send are no labels.
TEST_F(Metrics, B106UnknownModelNamesMakeNoSeries) {
  Start({});
  const auto count_series = [&] {
    size_t count = 0;
    for (const auto& [name, family] : Scrape()) count += family.samples.size();
    return count;
  };
  v1::GenerateRequest request = TextRequest("a", 1);
  request.set_model("warm up the one series of this kind");
  Generate(daemon_->stub(), request);
  const size_t series = count_series();
  for (const std::string name : {"a\"b", "a\\b", "a\nb", "x"}) {
    request.set_model(name);
    EXPECT_EQ(Generate(daemon_->stub(), request).status.error_code(), grpc::StatusCode::NOT_FOUND);
  }
  for (int i = 0; i < 200; ++i) {
    request.set_model(absl::StrCat("model-", i));
    Generate(daemon_->stub(), request);
  }
  request.set_model(std::string(1 << 20, 'm'));
  Generate(daemon_->stub(), request);
  EXPECT_EQ(count_series(), series);
}

}  // namespace
}  // namespace pagoda::e2e::metrics_test
