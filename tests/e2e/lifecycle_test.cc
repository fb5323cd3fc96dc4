// Stopping, and what the daemon does when a process dies.

#include <atomic>
#include <chrono>
#include <signal.h>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/health_watch.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e::lifecycle_test {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// The simulated device: 20 ms a step, so that streams last as long as a test wants.
TestDaemonOptions SlowDevice(std::vector<std::string> flags = {}) {
  flags.insert(flags.begin(), {"--device=sim", "--sim-base-us=20000"});
  return {.flags = std::move(flags)};
}

v1::GenerateRequest StreamOf(uint32_t num_tokens) {
  v1::GenerateRequest request = TextRequest("Once upon a time", num_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

class Lifecycle : public ::testing::Test {
 protected:
  void Start(TestDaemonOptions options) {
    auto daemon = TestDaemon::Start(std::move(options));
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    health_ = Health::NewStub(
        grpc::CreateChannel(daemon_->grpc_address(), grpc::InsecureChannelCredentials()));
  }
  bool Serving(const std::string& service = "pagoda.v1.InferenceService") {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    const grpc::Status status = health_->Check(&context, request, &response);
    return status.ok() && response.status() == HealthCheckResponse::SERVING;
  }
  // Opens streams and waits until each has its first token.
  void OpenStreams(int count, uint32_t num_tokens) {
    for (int i = 0; i < count; ++i) {
      stubs_.push_back(daemon_->NewStub());
      streams_.push_back(std::make_unique<OpenStream>(*stubs_.back(), StreamOf(num_tokens)));
    }
    for (const auto& stream : streams_) ASSERT_TRUE(stream->ReadFirstToken());
  }
  int ExitCode(absl::Duration timeout) { return daemon_->WaitForExit(timeout).value_or(-1); }

  std::unique_ptr<TestDaemon> daemon_;
  std::unique_ptr<Health::Stub> health_;
  std::vector<std::unique_ptr<v1::InferenceService::Stub>> stubs_;
  std::vector<std::unique_ptr<OpenStream>> streams_;
};

TEST_F(Lifecycle, HealthAnswersForEveryName) {
  Start(SlowDevice());
  EXPECT_TRUE(Serving());
  EXPECT_TRUE(Serving(""));
  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service("no.such.Service");
  HealthCheckResponse response;
  EXPECT_EQ(health_->Check(&context, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

// ---- Health.Watch, which load balancers keep open

TEST_F(Lifecycle, WatchSeesTheEndOfTheStart) {
  TestDaemonOptions options = SlowDevice();
  options.wait_until_serving = false;
  Start(std::move(options));
  HealthWatch watch(daemon_->grpc_address());
  ASSERT_TRUE(watch.ReadUntil(true)) << daemon_->Log();
  EXPECT_TRUE(Generate(daemon_->stub(), StreamOf(1)).status.ok());
}

TEST_F(Lifecycle, WatchSeesADrainBeforeItsStreamsEnd) {
  Start(SlowDevice());
  HealthWatch watch(daemon_->grpc_address()), whole_server(daemon_->grpc_address(), "");
  ASSERT_TRUE(watch.ReadUntil(true));
  ASSERT_TRUE(whole_server.ReadUntil(true));
  OpenStreams(1, 50);
  daemon_->Signal(SIGTERM);
  ASSERT_TRUE(watch.ReadUntil(false));
  ASSERT_TRUE(whole_server.ReadUntil(false));
  EXPECT_TRUE(streams_[0]->Finish().ok());
  EXPECT_EQ(streams_[0]->result.first().token_ids.size(), 50u);
  // Never back to SERVING.
  EXPECT_THAT(watch.ReadRest(), ::testing::Each(false));
  EXPECT_EQ(ExitCode(absl::Seconds(5)), 0) << daemon_->Log();
}

TEST_F(Lifecycle, WatchSeesALostWorkerThatIsNotReplaced) {
  Start(SlowDevice({"--max-worker-restarts=0"}));
  HealthWatch watch(daemon_->grpc_address());
  ASSERT_TRUE(watch.ReadUntil(true));
  for (const pid_t worker : daemon_->WorkerPids()) kill(worker, SIGKILL);
  EXPECT_TRUE(watch.ReadUntil(false));
  EXPECT_THAT(watch.ReadRest(), ::testing::Each(false));
  EXPECT_EQ(ExitCode(absl::Seconds(10)), 5) << daemon_->Log();
}

// Asked as grpcurl asks, in bytes: list_services is field 7 of ServerReflectionRequest.
TEST_F(Lifecycle, ReflectionNamesTheServices) {
  Start(SlowDevice());
  const auto channel =
      grpc::CreateChannel(daemon_->grpc_address(), grpc::InsecureChannelCredentials());
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  call->StartCall(nullptr);
  ASSERT_TRUE(next());
  const grpc::Slice list_services(std::string("\x3a\x00", 2));
  call->WriteLast(grpc::ByteBuffer(&list_services, 1), grpc::WriteOptions(), nullptr);
  ASSERT_TRUE(next());
  grpc::ByteBuffer reply;
  call->Read(&reply, nullptr);
  ASSERT_TRUE(next());
  grpc::Slice bytes;
  ASSERT_TRUE(reply.TrySingleSlice(&bytes).ok());
  const std::string text(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
  EXPECT_THAT(text, ::testing::HasSubstr("pagoda.v1.InferenceService"));
  EXPECT_THAT(text, ::testing::HasSubstr("grpc.health.v1.Health"));
}

// Sixteen are the case's; more are no other matter.
TEST_F(Lifecycle, B100SigtermLetsSixtyFourStreamsFinish) {
  Start(SlowDevice());
  OpenStreams(64, 50);
  daemon_->Signal(SIGTERM);
  ASSERT_TRUE(TestDaemon::Eventually(absl::Seconds(2), [&] { return !Serving(); }));
  EXPECT_FALSE(Serving(""));
  const grpc::Status refused = Generate(daemon_->stub(), StreamOf(1)).status;
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE) << refused.error_message();
  EXPECT_TRUE(HasRetryInfo(refused));
  for (const auto& stream : streams_) {
    EXPECT_TRUE(stream->Finish().ok()) << stream->result.status.error_message();
    EXPECT_EQ(stream->result.first().token_ids.size(), 50u);
    EXPECT_EQ(stream->result.first().finished.reason(), v1::FINISH_REASON_LENGTH);
  }
  EXPECT_EQ(ExitCode(absl::Seconds(5)), 0) << daemon_->Log();
}

TEST_F(Lifecycle, B100DrainLimitEndsWhatIsLeftWithAStatus) {
  Start(SlowDevice({"--drain-timeout=1s"}));
  OpenStreams(4, 2000);
  const absl::Time start = absl::Now();
  daemon_->Signal(SIGTERM);
  for (const auto& stream : streams_) {
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_TRUE(HasRetryInfo(stream->result.status));
    EXPECT_GT(stream->result.first().token_ids.size(), 1u);
  }
  EXPECT_EQ(ExitCode(absl::Seconds(5)), 13) << daemon_->Log();
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(900));
  EXPECT_LT(absl::Now() - start, absl::Seconds(4));  // limit + 1 s, on a busy machine
}

TEST_F(Lifecycle, B100SecondSigtermStopsAtOnce) {
  Start(SlowDevice());
  OpenStreams(2, 2000);
  daemon_->Signal(SIGTERM);
  ASSERT_TRUE(TestDaemon::Eventually(absl::Seconds(2), [&] { return !Serving(); }));
  daemon_->Signal(SIGTERM);
  for (const auto& stream : streams_) {
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  EXPECT_EQ(ExitCode(absl::Seconds(5)), 13) << daemon_->Log();
}

// Calls that came while the drain ended were cut off, as CANCELLED or with their connection.
TEST_F(Lifecycle, WhoeverComesDuringADrainIsServedOrRefused) {
  Start({.flags = {"--device=sim", "--sim-base-us=1000"}});
  constexpr int kNumClients = 8;
  std::atomic<int> num_served{0};
  std::vector<grpc::Status> ends(kNumClients);
  std::vector<std::thread> clients;
  for (grpc::Status& end : ends) {
    clients.emplace_back([&, stub = daemon_->NewStub()] {
      while ((end = Generate(*stub, StreamOf(4)).status).ok()) num_served.fetch_add(1);
    });
  }
  EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(20), [&] { return num_served.load() > 100; }));
  daemon_->Signal(SIGTERM);
  for (std::thread& client : clients) client.join();
  for (const grpc::Status& end : ends) {
    EXPECT_EQ(end.error_code(), grpc::StatusCode::UNAVAILABLE) << end.error_message();
    // By the daemon, or by the engine whom a call reached just after.
    EXPECT_THAT(
        end.error_message(),
        ::testing::AnyOf(::testing::HasSubstr("shutting down"), ::testing::HasSubstr("draining")));
    EXPECT_TRUE(HasRetryInfo(end));
  }
  EXPECT_EQ(ExitCode(absl::Seconds(10)), 0) << daemon_->Log();
}

TEST_F(Lifecycle, SigtermWhenIdle) {
  Start(SlowDevice());
  const absl::Time start = absl::Now();
  daemon_->Signal(SIGTERM);
  EXPECT_EQ(ExitCode(absl::Seconds(5)), 0) << daemon_->Log();
  EXPECT_LT(absl::Now() - start, absl::Seconds(3));
}

TEST_F(Lifecycle, B100SigtermWhileStarting) {
  // At several moments of a start.
  for (const int delay_ms : {0, 5, 20, 40, 80, 160}) {
    TestDaemonOptions options;
    options.wait_until_serving = false;
    Start(std::move(options));
    absl::SleepFor(absl::Milliseconds(delay_ms));
    daemon_->Signal(SIGTERM);
    const int code = ExitCode(absl::Seconds(10));
    // Before the handler is there the signal itself ends the process.
    EXPECT_TRUE(code == 0 || code == 128 + SIGTERM) << code << "\n" << daemon_->Log();
  }
}

// ---- Deaths

TEST_F(Lifecycle, KilledDaemonLeavesNoWorker) {
  Start({});
  const std::vector<pid_t> workers = daemon_->WorkerPids();
  ASSERT_FALSE(workers.empty());
  OpenStreams(4, 500);
  daemon_->Signal(SIGKILL);
  EXPECT_EQ(ExitCode(absl::Seconds(5)), 128 + SIGKILL);
  for (const pid_t worker : workers) {
    EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(2), [&] { return kill(worker, 0) != 0; }));
  }
}

void ExpectWorkerLost(Lifecycle* /*test*/, TestDaemon* daemon) {
  EXPECT_EQ(daemon->WaitForExit(absl::Seconds(10)).value_or(-1), 5) << daemon->Log();
  EXPECT_THAT(daemon->Log(), ::testing::HasSubstr("worker"));
}

TEST_F(Lifecycle, KilledWorkerThatIsNotReplacedEndsStreamsWithUnavailable) {
  Start(SlowDevice({"--max-worker-restarts=0"}));
  OpenStreams(8, 2000);
  for (const pid_t worker : daemon_->WorkerPids()) kill(worker, SIGKILL);
  const absl::Time start = absl::Now();
  for (const auto& stream : streams_) {
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_TRUE(HasRetryInfo(stream->result.status));
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  ExpectWorkerLost(this, daemon_.get());
}

TEST_F(Lifecycle, B098KilledWorkerOfAnIdleDaemonIsSeen) {
  Start(SlowDevice({"--max-worker-restarts=0"}));
  ASSERT_TRUE(Serving());
  for (const pid_t worker : daemon_->WorkerPids()) kill(worker, SIGKILL);
  EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(2), [&] { return !Serving(); }));
  ExpectWorkerLost(this, daemon_.get());
}

TEST_F(Lifecycle, B098StoppedWorkerIsFoundByItsStep) {
  Start(SlowDevice({"--step-timeout=1s", "--max-worker-restarts=0"}));
  ASSERT_TRUE(Serving());
  for (const pid_t worker : daemon_->WorkerPids()) kill(worker, SIGSTOP);
  // Nothing is asked of it yet, but whoever asks for readiness is told.
  EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(20), [&] { return !Serving(); }));
  EXPECT_TRUE(Serving(""));
  const absl::Time start = absl::Now();
  const grpc::Status status = Generate(daemon_->stub(), StreamOf(5)).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_LT(absl::Now() - start, absl::Seconds(4));
  EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(1), [&] { return !Serving(); }));
  ExpectWorkerLost(this, daemon_.get());
}

}  // namespace
}  // namespace pagoda::e2e::lifecycle_test
