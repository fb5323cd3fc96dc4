// Clients that go away, wait too long, read too slowly or ask for too much: nothing of theirs stays
// behind.

#include <filesystem>
#include <iterator>
#include <signal.h>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/slow_sender.h"
#include "tests/e2e/test_daemon.h"
#include "tests/fixtures/context_model.h"

namespace pagoda::e2e::disconnect_test {
namespace {

using ::testing::HasSubstr;

constexpr char kUsedBlocks[] = "pagoda_kv_blocks{pool=\"0\",state=\"used\"}";

std::unique_ptr<TestDaemon> StartSim(std::vector<std::string> flags, bool over_tcp = false) {
  flags.insert(flags.begin(), "--device=sim");
  auto daemon = TestDaemon::Start({.flags = std::move(flags), .over_tcp = over_tcp});
  EXPECT_TRUE(daemon.ok()) << daemon.status();
  if (!daemon.ok()) std::abort();
  return *std::move(daemon);
}

v1::GenerateRequest Endless() {
  v1::GenerateRequest request = TextRequest("Once upon a time", 2000);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

double MetricOf(const TestDaemon& daemon, absl::string_view series) {
  return daemon.Metric(series).value_or(-1);
}

bool NothingRuns(const TestDaemon& daemon) {
  return TestDaemon::Eventually(absl::Seconds(5), [&] {
    return MetricOf(daemon, "pagoda_requests_running") == 0 &&
           MetricOf(daemon, "pagoda_requests_waiting") == 0 && MetricOf(daemon, kUsedBlocks) == 0 &&
           MetricOf(daemon, "pagoda_grpc_streams") == 0;
  });
}

// ---- B072

TEST(Disconnect, B072CancelledStreamFreesItsBlocks) {
  const auto daemon = StartSim({"--sim-base-us=10000"});
  OpenStream stream(daemon->stub(), Endless());
  ASSERT_TRUE(stream.ReadFirstToken());
  EXPECT_GT(MetricOf(*daemon, kUsedBlocks), 0);
  stream.Cancel();
  stream.Finish();
  EXPECT_TRUE(NothingRuns(*daemon));
  EXPECT_EQ(MetricOf(*daemon, "pagoda_cancel_to_free_seconds_count"), 1);
  const double tokens = MetricOf(*daemon, "pagoda_generation_tokens_total");
  EXPECT_LT(tokens, 1000);
  EXPECT_EQ(
      MetricOf(
          *daemon,
          "pagoda_requests_finished_total{model=\"fable-7m\",api=\"grpc\",outcome=\"cancelled\""),
      1);
}

TEST(Disconnect, B072UnaryClientThatHangsUp) {
  const auto daemon = StartSim({"--sim-base-us=10000"});
  {
    grpc::ClientContext context;
    std::thread client([&] {
      v1::GenerateResponse response;
      daemon->NewStub()->Generate(&context, Endless(), &response);
    });
    ASSERT_TRUE(TestDaemon::Eventually(absl::Seconds(5),
                                       [&] { return MetricOf(*daemon, kUsedBlocks) > 0; }));
    context.TryCancel();
    client.join();
  }
  EXPECT_TRUE(NothingRuns(*daemon));
}

// A forked child may not use gRPC; the command line client is a process of its own.
std::vector<std::string> EndlessClient(const TestDaemon& daemon) {
  return {"generate",
          "Once upon a time",
          "--address=" + daemon.grpc_address(),
          "--max-tokens=2000",
          "--ignore-eos"};
}

TEST(Disconnect, B072ClientProcessThatDies) {
  const auto daemon = StartSim({"--sim-base-us=10000"});
  const PagodaProcess client(EndlessClient(*daemon));
  ASSERT_TRUE(TestDaemon::Eventually(absl::Seconds(10),
                                     [&] { return MetricOf(*daemon, kUsedBlocks) > 0; }));
  client.Signal(SIGKILL);
  EXPECT_TRUE(NothingRuns(*daemon));
}

// Its machine still acknowledges what is sent, as one behind a dead network would not even; pings
// are what it does not answer. One minute to the ping, 20 s for the answer.
TEST(DisconnectLong, B072SilentClientIsFoundByPings) {
  const auto daemon = StartSim({"--sim-base-us=200000"}, /*over_tcp=*/true);
  const PagodaProcess client(EndlessClient(*daemon));
  ASSERT_TRUE(TestDaemon::Eventually(absl::Seconds(10),
                                     [&] { return MetricOf(*daemon, kUsedBlocks) > 0; }));
  client.Signal(SIGSTOP);
  EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(180),
                                     [&] { return MetricOf(*daemon, kUsedBlocks) == 0; }));
  EXPECT_LT(MetricOf(*daemon, "pagoda_generation_tokens_total"), 1000);
  EXPECT_TRUE(NothingRuns(*daemon));
}

size_t NumDescriptors(pid_t pid) {
  std::error_code ignored;
  const std::filesystem::directory_iterator files(absl::StrCat("/proc/", pid, "/fd"), ignored);
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

TEST(Disconnect, ManyCancelsAndDeadlinesInEveryPhaseLeaveNothing) {
  const auto daemon = StartSim({"--sim-base-us=500", "--max-num-seqs=8"});
  ASSERT_TRUE(Generate(daemon->stub(), TextRequest("Once", 1)).status.ok());
  const size_t num_descriptors = NumDescriptors(daemon->pid());
  std::vector<std::thread> clients;
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      const auto stub = daemon->NewStub();
      for (int i = 0; i < 50; ++i) {
        OpenStream stream(*stub, Endless());
        for (int read = 0; read < (i + c) % 4; ++read) stream.Read();
        stream.Cancel();
        EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::CANCELLED);
        const absl::Duration deadline = absl::Microseconds(200 << (i % 8));
        EXPECT_EQ(StreamGenerate(*stub, Endless(), deadline).status.error_code(),
                  grpc::StatusCode::DEADLINE_EXCEEDED);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(NothingRuns(*daemon));
  EXPECT_TRUE(TestDaemon::Eventually(
      absl::Seconds(10), [&] { return NumDescriptors(daemon->pid()) <= num_descriptors; }))
      << NumDescriptors(daemon->pid()) << ", before " << num_descriptors;
  // Some were cancelled before they left the client.
  const double received = MetricOf(*daemon, "pagoda_requests_received_total{");
  EXPECT_GT(received, 100);
  EXPECT_EQ(MetricOf(*daemon, "pagoda_requests_finished_total{"), received);
}

// ---- B074

TEST(Deadline, B074PassedInTheQueue) {
  const auto daemon = StartSim({"--sim-base-us=20000", "--max-num-seqs=1"});
  OpenStream first(daemon->stub(), Endless());
  ASSERT_TRUE(first.ReadFirstToken());
  const double prompt_tokens = MetricOf(*daemon, "pagoda_prompt_tokens_total");
  const absl::Time start = absl::Now();
  const CallResult second =
      Generate(*daemon->NewStub(), TextRequest("Once", 5), absl::Milliseconds(500));
  EXPECT_EQ(second.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(450));
  EXPECT_LT(absl::Now() - start, absl::Seconds(3));
  EXPECT_TRUE(TestDaemon::Eventually(
      absl::Seconds(5), [&] { return MetricOf(*daemon, "pagoda_grpc_streams") == 1; }));
  EXPECT_EQ(MetricOf(*daemon, "pagoda_prompt_tokens_total"), prompt_tokens);  // no prefill was done
  EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(5), [&] {
    return MetricOf(*daemon,
                    "pagoda_requests_finished_total{model=\"fable-7m\",api=\"grpc\",outcome="
                    "\"deadline\"") == 1;
  }));
  EXPECT_EQ(MetricOf(*daemon, "pagoda_requests_waiting"), 0);
  first.Cancel();
  first.Finish();
}

TEST(Deadline, PassedWhileRunning) {
  const auto daemon = StartSim({"--sim-base-us=20000"});
  const CallResult result = StreamGenerate(daemon->stub(), Endless(), absl::Milliseconds(400));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_GT(result.first().token_ids.size(), 0u);
  EXPECT_TRUE(NothingRuns(*daemon));
}

// ---- B075

TEST(Admission, B075RequestThatCanNeverFit) {
  const auto model = fixtures::WriteModelDir(fixtures::ContextModel({}));
  // 10 blocks of 4 tokens; the context is 64.
  constexpr int kTokenBytes = 2 * 2 * 2 * 64 * 4;
  auto daemon =
      TestDaemon::Start({.model_dir = model.path(),
                         .flags = {"--block-size=4",
                                   "--max-model-len=64",
                                   absl::StrCat("--kv-cache-memory=", 10 * 4 * kTokenBytes)}});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  v1::InferenceService::Stub& stub = (*daemon)->stub();
  const CallResult never =
      Generate(stub, IdsRequest(std::vector<uint32_t>(50, 9), 1), absl::Seconds(20));
  EXPECT_EQ(never.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
      << never.status.error_message();
  EXPECT_THAT(never.status.error_message(), HasSubstr("50"));
  EXPECT_THAT(never.status.error_message(), HasSubstr("10"));
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(Generate(stub, IdsRequest({1, 2, 3}, 2), absl::Seconds(20)).status.ok());
  }
  // One that grows past the pool ends, with a reason.
  v1::GenerateRequest growing = IdsRequest(std::vector<uint32_t>(38, 9), 20);
  growing.mutable_stopping()->set_ignore_eos(true);
  const CallResult grown = Generate(stub, growing, absl::Seconds(20));
  if (grown.status.ok()) {
    EXPECT_EQ(grown.first().finished.reason(), v1::FINISH_REASON_LENGTH);
    EXPECT_LE(grown.first().token_ids.size(), 3u);
  } else {
    EXPECT_NE(grown.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
}

// ---- B077

TEST(Admission, B077ExcessIsRefusedAtOnceWithAHint) {
  const auto daemon =
      StartSim({"--sim-base-us=20000", "--max-num-seqs=1", "--max-waiting-requests=4"});
  OpenStream running(daemon->stub(), Endless());
  ASSERT_TRUE(running.ReadFirstToken());
  std::vector<std::unique_ptr<v1::InferenceService::Stub>> stubs;
  std::vector<std::unique_ptr<OpenStream>> waiting;
  for (int i = 0; i < 4; ++i) {
    stubs.push_back(daemon->NewStub());
    waiting.push_back(std::make_unique<OpenStream>(*stubs.back(), Endless()));
  }
  ASSERT_TRUE(TestDaemon::Eventually(
      absl::Seconds(5), [&] { return MetricOf(*daemon, "pagoda_requests_waiting") == 4; }));
  for (int i = 0; i < 20; ++i) {
    const absl::Time start = absl::Now();
    const CallResult refused = Generate(daemon->stub(), TextRequest("a", 1));
    EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_TRUE(HasRetryInfo(refused.status));
    EXPECT_LT(absl::Now() - start, absl::Seconds(1));
  }
  EXPECT_EQ(MetricOf(*daemon, "pagoda_requests_rejected_total{reason=\"queue_full\"}"), 20);
  // n counts as n: one place is free, two are not.
  waiting.back()->Cancel();
  waiting.back()->Finish();
  waiting.pop_back();
  ASSERT_TRUE(TestDaemon::Eventually(
      absl::Seconds(5), [&] { return MetricOf(*daemon, "pagoda_requests_waiting") == 3; }));
  v1::GenerateRequest two = Endless();
  two.mutable_output()->set_n(2);
  EXPECT_EQ(Generate(daemon->stub(), two).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  // Those who left the queue never run.
  const double prompt_tokens = MetricOf(*daemon, "pagoda_prompt_tokens_total");
  for (auto& stream : waiting) stream->Cancel();
  for (auto& stream : waiting) stream->Finish();
  running.Cancel();
  running.Finish();
  EXPECT_TRUE(NothingRuns(*daemon));
  EXPECT_EQ(MetricOf(*daemon, "pagoda_prompt_tokens_total"), prompt_tokens);
}

// ---- B104

TEST(SlowReader, B104IsEndedAndHoldsNothing) {
  const auto daemon = StartSim({"--sim-base-us=1000",
                                "--max-num-seqs=128",
                                "--stream-stall-timeout=2s",
                                "--max-model-len=2048"});
  const double resident = MetricOf(*daemon, "process_resident_memory_bytes");
  constexpr int kNumSlow = 100;
  std::vector<std::unique_ptr<v1::InferenceService::Stub>> stubs;
  std::vector<std::unique_ptr<OpenStream>> slow;
  for (int i = 0; i < kNumSlow; ++i) {
    v1::GenerateRequest request = Endless();
    request.mutable_output()->set_logprobs(20);
    stubs.push_back(daemon->NewStub());
    slow.push_back(std::make_unique<OpenStream>(*stubs.back(), request));
    slow.back()->Read();
  }
  // A reader beside them is served as ever.
  const CallResult quick = StreamGenerate(*daemon->NewStub(), TextRequest("Once", 200));
  EXPECT_TRUE(quick.status.ok());
  EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(20), [&] {
    return MetricOf(*daemon, "pagoda_requests_running") == 0 && MetricOf(*daemon, kUsedBlocks) == 0;
  }));
  EXPECT_LT(MetricOf(*daemon, "process_resident_memory_bytes") - resident,
            kNumSlow * 256.0 * 1024.0);
  int num_ended = 0;
  for (const auto& stream : slow) {
    num_ended += stream->Finish().error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ? 1 : 0;
  }
  EXPECT_EQ(num_ended, kNumSlow);
  EXPECT_EQ(MetricOf(*daemon, "pagoda_stream_stalls_total"), kNumSlow);
}

// ---- B105

TEST(SlowSenderLong, B105TogetherHoldNoMoreThanTheBudget) {
  constexpr uint32_t kMessageBytes = 64 << 20;
  constexpr int kNumSenders = 40;
  const auto daemon = StartSim({});
  Generate(daemon->stub(), TextRequest("Once", 1));
  const double resident = MetricOf(*daemon, "process_resident_memory_bytes");
  std::vector<std::unique_ptr<SlowSender>> senders;
  for (int i = 0; i < kNumSenders; ++i) {
    senders.push_back(std::make_unique<SlowSender>(
        daemon->grpc_address(), "/pagoda.v1.InferenceService/Generate", kMessageBytes));
  }
  // All of it but one byte, from everybody who is let.
  double most = 0;
  const auto is_through = [](const auto& sender) {
    if (!sender->ended()) sender->Send(std::min<size_t>(1 << 20, sender->num_unsent() - 1));
    return sender->ended() || sender->num_unsent() == 1;
  };
  EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(120), [&] {
    most = std::max(most, MetricOf(*daemon, "process_resident_memory_bytes") - resident);
    return std::count_if(senders.begin(), senders.end(), is_through) == kNumSenders;
  }));
  // Sixteen messages, and what a process holds beside.
  EXPECT_LT(most, 1.25 * 16 * kMessageBytes);
  EXPECT_TRUE(Generate(*daemon->NewStub(), TextRequest("Once", 1)).status.ok());
  const auto num_ended = std::count_if(
      senders.begin(), senders.end(), [](const auto& sender) { return sender->ended(); });
  EXPECT_GE(num_ended, kNumSenders - 18);
}

}  // namespace
}  // namespace pagoda::e2e::disconnect_test
