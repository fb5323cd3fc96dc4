// What /metrics says is what clients saw.

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <functional>
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

// ---- G22: exact through losses of workers, cancellations and deadlines

// What clients count.
struct Tally {
  std::atomic<uint64_t> num_calls{0}, num_ok{0}, num_invalid{0}, num_given_up{0};
  std::atomic<uint64_t> prompt_tokens{0}, cached_tokens{0}, output_tokens{0};

  void Add(const CallResult& result) {
    ++num_calls;
    const grpc::StatusCode code = result.status.error_code();
    num_ok += code == grpc::StatusCode::OK ? 1 : 0;
    num_invalid += code == grpc::StatusCode::INVALID_ARGUMENT ? 1 : 0;
    num_given_up +=
        code == grpc::StatusCode::CANCELLED || code == grpc::StatusCode::DEADLINE_EXCEEDED ? 1 : 0;
    prompt_tokens += result.started.prompt_tokens();
    cached_tokens += result.started.cached_tokens();
    for (const auto& [index, sequence] : result.sequences)
      output_tokens += sequence.token_ids.size();
  }
};

class MetricsExact : public Metrics {
 protected:
  void SetUp() override {
    auto daemon = TestDaemon::Start({.flags = {"--device=sim",
                                               "--sim-base-us=1000",
                                               "--block-size=16",
                                               "--max-num-seqs=8",
                                               "--max-worker-restarts=1000000"}});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }
  // Until `is_over`, or `num_calls` of each client.
  void RunClients(int num_calls, const std::function<bool()>& is_over, auto call) {
    std::vector<std::thread> clients;
    for (int c = 0; c < 6; ++c) {
      clients.emplace_back([&, c] {
        const auto stub = daemon_->NewStub();
        for (int i = 0; i < num_calls && !is_over(); ++i) tally_.Add(call(*stub, c, i));
      });
    }
    for (std::thread& client : clients) client.join();
  }
  static v1::GenerateRequest RequestOf(int client, int i, uint32_t max_tokens) {
    std::vector<uint32_t> ids(32, static_cast<uint32_t>(10 + client));
    ids.push_back(static_cast<uint32_t>(100 + i % 50));
    v1::GenerateRequest request = IdsRequest(ids, max_tokens);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_output()->set_n(1 + static_cast<uint32_t>(i % 2));
    return request;
  }
  // Once every call has ended for the daemon too.
  Exposition ScrapeAtRest() {
    EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(20), [this] {
      const Exposition now = Scrape();
      return Sum(now, "pagoda_requests_finished_total") == tally_.num_calls.load() &&
             Sum(now, "pagoda_requests_running") == 0;
    }));
    return Scrape();
  }

  Tally tally_;
};

TEST_F(MetricsExact, ThroughLossesOfWorkers) {
  std::atomic<bool> is_over{false};
  constexpr int kNumKills = 4;
  std::thread killer([&] {
    for (int i = 0; i < kNumKills; ++i) {
      const uint64_t num_calls = tally_.num_calls.load() + 12;
      EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(60),
                                         [&] { return tally_.num_calls.load() >= num_calls; }));
      for (const pid_t worker : daemon_->WorkerPids()) kill(worker, SIGKILL);
      EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(60), [&] {
        return daemon_->Metric("pagoda_recovery_seconds_count").value_or(-1) > i;
      }));
    }
    is_over = true;
  });
  RunClients(
      100'000,
      [&] { return is_over.load(); },
      [](auto& stub, int c, int i) {
        const v1::GenerateRequest request = RequestOf(c, i, 30);
        return i % 2 == 0 ? Generate(stub, request) : StreamGenerate(stub, request);
      });
  killer.join();
  const Exposition metrics = ScrapeAtRest();
  EXPECT_THAT(LintExposition(metrics, {"pagoda_", "process_"}), IsEmpty());
  EXPECT_EQ(tally_.num_ok, tally_.num_calls);
  EXPECT_EQ(Sum(metrics, "pagoda_worker_restarts_total"), kNumKills);
  EXPECT_GT(Sum(metrics, "pagoda_recovered_sequences_total"), 0);
  EXPECT_EQ(Sum(metrics, "pagoda_requests_received_total"), tally_.num_calls);
  EXPECT_EQ(Sum(metrics, "pagoda_requests_finished_total", {{"outcome", "length"}, {"code", "OK"}}),
            tally_.num_ok);
  EXPECT_EQ(Sum(metrics, "pagoda_generation_tokens_total"), tally_.output_tokens);
  EXPECT_EQ(Sum(metrics, "vllm:generation_tokens_total"), tally_.output_tokens);
  EXPECT_EQ(Sum(metrics, "pagoda_prompt_tokens_total"), tally_.prompt_tokens);
  EXPECT_EQ(Sum(metrics, "pagoda_prompt_tokens_total", {{"source", "cached"}}),
            tally_.cached_tokens);
  EXPECT_GT(tally_.cached_tokens, 0u);
}

TEST_F(MetricsExact, ThroughCancellationsDeadlinesAndErrors) {
  RunClients(
      20,
      [] { return false; },
      [](auto& stub, int c, int i) {
        // Far longer than their clients wait.
        if (i % 4 == 0) {
          OpenStream stream(stub, RequestOf(c, i, 400));
          stream.ReadFirstToken();
          stream.Cancel();
          stream.result.status = stream.Finish();
          return stream.result;
        }
        if (i % 4 == 1) return StreamGenerate(stub, RequestOf(c, i, 400), absl::Milliseconds(30));
        if (i % 4 == 2) return Generate(stub, IdsRequest({}, 1));
        return Generate(stub, RequestOf(c, i, 5));
      });
  const Exposition metrics = ScrapeAtRest();
  const auto finished = [&](const char* code) {
    return Sum(metrics, "pagoda_requests_finished_total", {{"code", code}});
  };
  EXPECT_EQ(tally_.num_calls, 120u);
  EXPECT_EQ(tally_.num_given_up, 60u);
  EXPECT_EQ(Sum(metrics, "pagoda_requests_received_total"), tally_.num_calls);
  EXPECT_EQ(finished("OK"), tally_.num_ok);
  EXPECT_EQ(finished("INVALID_ARGUMENT"), tally_.num_invalid);
  EXPECT_EQ(finished("CANCELLED") + finished("DEADLINE_EXCEEDED"), tally_.num_given_up);
  EXPECT_EQ(Sum(metrics, "pagoda_kv_blocks", {{"state", "used"}}), 0);
  EXPECT_EQ(Sum(metrics, "pagoda_grpc_streams"), 0);
}

// ---- What devices do

void GenerateSome(TestDaemon& daemon, int num_calls) {
  for (int i = 0; i < num_calls; ++i) {
    v1::GenerateRequest request = IdsRequest({1, 2, 3, 4, static_cast<uint32_t>(i)}, 8);
    request.mutable_stopping()->set_ignore_eos(true);
    ASSERT_TRUE(Generate(daemon.stub(), request).status.ok());
  }
}

TEST_F(Metrics, EveryStepIsSomeDevicesWork) {
  if (DeviceUnderTest() == "cuda") GTEST_SKIP() << "ranks meet on the devices, which tell no times";
  Start({"--tensor-parallel-size=2"});
  ASSERT_NO_FATAL_FAILURE(GenerateSome(*daemon_, 5));
  const Exposition metrics = Scrape();
  EXPECT_THAT(LintExposition(metrics, {"pagoda_", "process_"}), IsEmpty());
  const double num_steps = Sum(metrics, "pagoda_steps_total");
  EXPECT_EQ(Sum(metrics, "pagoda_cuda_graph_replays_total"), 0);
  for (const char* gpu : {"0", "1"}) {
    SCOPED_TRACE(gpu);
    const auto of = [&](const char* name) { return Sum(metrics, name, {{"gpu", gpu}}); };
    EXPECT_EQ(of("pagoda_device_info"), 1);
    // The other rank's last answers may come after rank 0's.
    EXPECT_LE(of("pagoda_cuda_eager_steps_total"), num_steps);
    EXPECT_GE(of("pagoda_cuda_eager_steps_total"), num_steps / 2);
    EXPECT_GT(of("pagoda_collective_seconds_total"), 0);
    EXPECT_GT(of("pagoda_gpu_busy_seconds_total"), of("pagoda_collective_seconds_total"));
    EXPECT_GT(Sum(metrics, "pagoda_gpu_memory_bytes", {{"gpu", gpu}, {"kind", "kv"}}), 0);
  }
  EXPECT_EQ(Sum(metrics, "pagoda_cuda_eager_steps_total", {{"gpu", "0"}}), num_steps);
  // Of rank 0: steps that overlap count once.
  EXPECT_LE(Sum(metrics, "pagoda_gpu_busy_seconds_total", {{"gpu", "0"}}),
            Sum(metrics, "pagoda_step_duration_seconds_sum") * (1 + 1e-9));
  // A CPU has no driver to ask.
  EXPECT_EQ(metrics.count("pagoda_gpu_up"), 0u);
}

// A machine with a GPU that records graphs, and with its driver's library, as a test has them.
class MetricsOfAGpu : public Metrics {
 protected:
  void StartOnGpu(const char* nvml) {
    setenv("PAGODA_FAKE_DRIVER", "serves=1", 1);
    setenv("PAGODA_FAKE_NVML", nvml, 1);
    setenv("LD_LIBRARY_PATH", PAGODA_FAKE_NVML_DIR, 1);
    Start({"--device=cuda",
           "--dtype=float32",
           "--kv-cache-memory=16MiB",
           absl::StrCat("--backend-dir=", PAGODA_FAKE_MODULE_DIR)});
    for (const char* name : {"PAGODA_FAKE_DRIVER", "PAGODA_FAKE_NVML", "LD_LIBRARY_PATH"})
      unsetenv(name);
  }
};

TEST_F(MetricsOfAGpu, TellOfGraphsAndOfTheGpu) {
  ASSERT_NO_FATAL_FAILURE(StartOnGpu(""));
  ASSERT_NO_FATAL_FAILURE(GenerateSome(*daemon_, 5));
  ASSERT_TRUE(TestDaemon::Eventually(absl::Seconds(20),
                                     [&] { return Scrape().count("pagoda_gpu_up") > 0; }));
  const Exposition metrics = Scrape();
  EXPECT_THAT(LintExposition(metrics, {"pagoda_", "process_"}), IsEmpty());
  const auto of = [&](const char* name) { return Sum(metrics, name, {{"gpu", "0"}}); };
  EXPECT_EQ(Sum(metrics, "pagoda_device_info", {{"pci_bus_id", "0000:00:01.0"}}), 1);
  EXPECT_GT(of("pagoda_cuda_graph_replays_total"), 0);
  EXPECT_GT(of("pagoda_cuda_graph_captures_total"), 0);
  EXPECT_GT(of("pagoda_cuda_eager_steps_total"), 0);
  // A step replays one graph at most.
  EXPECT_EQ(of("pagoda_cuda_graph_replays_total") + of("pagoda_cuda_eager_steps_total"),
            Sum(metrics, "pagoda_steps_total"));
  EXPECT_EQ(of("pagoda_collective_seconds_total"), 0);
  EXPECT_EQ(of("pagoda_gpu_up"), 1);
  EXPECT_EQ(of("pagoda_gpu_utilization_ratio"), 0.5);
  EXPECT_EQ(of("pagoda_gpu_temperature_celsius"), 60);
  EXPECT_EQ(Sum(metrics, "pagoda_gpu_memory_bytes", {{"gpu", "0"}, {"kind", "free"}}),
            30.0 * (1 << 30));
}

// Not its scrapes, not its requests, not its end.
TEST_F(MetricsOfAGpu, ADriverThatHangsStallsNothing) {
  ASSERT_NO_FATAL_FAILURE(StartOnGpu("hang"));
  ASSERT_NO_FATAL_FAILURE(GenerateSome(*daemon_, 3));
  const absl::Time start = absl::Now();
  EXPECT_GT(Sum(Scrape(), "pagoda_generation_tokens_total"), 0);
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  daemon_->Signal(SIGTERM);
  EXPECT_EQ(daemon_->WaitForExit(absl::Seconds(10)).value_or(-1), 0) << daemon_->Log();
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
