// Readiness under each kind of fault of a worker: gRPC's health service and HTTP's say within two
// seconds that nobody computes, and that somebody does again; that the daemon lives they say all
// the while. The stream that runs through it loses nothing.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <signal.h>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/health_watch.h"
#include "tests/e2e/http_client.h"
#include "tests/e2e/test_daemon.h"
#include "tests/e2e/worker_faults.h"

namespace pagoda::e2e::health_faults_test {
namespace {

constexpr uint32_t kNumTokens = 400;

struct FaultCase {
  const char* name;
  const char* hooks = "";   // what workers bring about in a step
  int signal = 0;           // what they get while a stream runs
  bool is_idle = false;     // no stream runs
  bool stops_next = false;  // a new worker is stopped as soon as it is there, or
                            // it would be ready before anybody is told
  bool continues = false;   // SIGCONT, to whoever was stopped, is what ends it
  int num_flips = 1;
};

class HealthFaults : public ::testing::TestWithParam<FaultCase> {
 protected:
  void Start() {
    const WorkerFaults faults(GetParam().hooks);
    auto daemon =
        TestDaemon::Start({.flags = {"--device=sim", "--sim-base-us=5000", "--log-level=warning"},
                           .with_http = true});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    first_ = daemon_->WorkerPids();
  }
  static v1::GenerateRequest StreamOf(uint32_t num_tokens) {
    v1::GenerateRequest request = TextRequest("Once upon a time", num_tokens);
    request.mutable_stopping()->set_ignore_eos(true);
    return request;
  }
  void SignalAll(int signal) const {
    for (const pid_t worker : daemon_->WorkerPids()) kill(worker, signal);
  }
  int HttpStatus() const { return HttpGet(daemon_->http_port(), "/health").status; }

  void Run();
  // The worker, or the one after it, has its fault; then the watch says that nobody computes.
  void AwaitFault(HealthWatch* watch) {
    const FaultCase& fault = GetParam();
    absl::Time begin = absl::Now();
    if (fault.signal != 0) SignalAll(fault.signal);
    if (fault.stops_next) {
      ASSERT_TRUE(TestDaemon::Eventually(absl::Seconds(20), [&] {
        const std::vector<pid_t> now = daemon_->WorkerPids();
        return !now.empty() && now != first_;
      })) << daemon_->Log();
      SignalAll(SIGSTOP);
    }
    ASSERT_TRUE(watch->ReadUntil(false)) << daemon_->Log();
    if (fault.signal == 0) begin = absl::FromUnixNanos(last_token_ns_.load());
    flip_seconds_ = absl::ToDoubleSeconds(absl::Now() - begin);
  }

  std::unique_ptr<TestDaemon> daemon_;
  std::vector<pid_t> first_;  // workers that the daemon started with
  std::atomic<int64_t> last_token_ns_{0};
  double flip_seconds_ = 0;
};

void HealthFaults::Run() {
  const FaultCase& fault = GetParam();
  ASSERT_NO_FATAL_FAILURE(Start());
  HealthWatch watch(daemon_->grpc_address());
  HealthWatch lives(daemon_->grpc_address(), "");
  ASSERT_TRUE(watch.ReadUntil(true));
  ASSERT_TRUE(lives.ReadUntil(true));
  EXPECT_EQ(HttpStatus(), 200);
  OpenStream stream(daemon_->stub(), StreamOf(fault.is_idle ? 1 : kNumTokens));
  // Steps are known, so that one that is late can be told from one that is slow.
  for (int i = 0; i < 20 && stream.Read(); ++i) {
  }
  std::thread reader([&] {
    while (stream.Read()) last_token_ns_.store(absl::GetCurrentTimeNanos());
  });
  for (int flip = 0; flip < fault.num_flips && !HasFatalFailure(); ++flip) {
    AwaitFault(&watch);
    EXPECT_EQ(HttpStatus(), 503);
    const absl::Time end = absl::Now();
    if (fault.continues || fault.stops_next) SignalAll(SIGCONT);
    EXPECT_TRUE(watch.ReadUntil(true)) << daemon_->Log();
    EXPECT_EQ(HttpStatus(), 200);
    std::printf("%s: not ready after %.2f s, ready again %.2f s later\n",
                fault.name,
                flip_seconds_,
                absl::ToDoubleSeconds(absl::Now() - end));
    // Ten times what is promised.
    EXPECT_LT(flip_seconds_, 20);
  }
  reader.join();
  EXPECT_TRUE(stream.Finish().ok()) << stream.result.status.error_message();
  EXPECT_EQ(stream.result.first().token_ids.size(), fault.is_idle ? 1 : kNumTokens);
  EXPECT_TRUE(StreamGenerate(daemon_->stub(), StreamOf(2)).status.ok());
  daemon_->Signal(SIGTERM);
  EXPECT_EQ(daemon_->WaitForExit(absl::Seconds(20)).value_or(-1), 0) << daemon_->Log();
  EXPECT_THAT(watch.ReadRest(), ::testing::Each(false));
  // It was said to live until it ended.
  const std::vector<bool> rest = lives.ReadRest();
  EXPECT_TRUE(std::is_sorted(rest.rbegin(), rest.rend()));
}

std::string NameOf(const ::testing::TestParamInfo<FaultCase>& info) { return info.param.name; }

TEST_P(HealthFaults, ReadinessTurnsAndTurnsBack) { Run(); }

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    HealthFaults,
    ::testing::Values(
        FaultCase{.name = "StoppedWhenIdle", .signal = SIGSTOP, .is_idle = true, .continues = true},
        FaultCase{.name = "Killed", .signal = SIGKILL, .stops_next = true},
        // The second is given more time than a step of the kind ever took, and comes to its end.
        FaultCase{
            .name = "HangsThenIsLate", .hooks = "hang@80:0:1,delay3000@80:0:2", .num_flips = 2}),
    NameOf);

class HealthFaultsLong : public HealthFaults {};

TEST_P(HealthFaultsLong, ReadinessTurnsAndTurnsBack) { Run(); }

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    HealthFaultsLong,
    ::testing::Values(FaultCase{.name = "StoppedInAStep", .signal = SIGSTOP},
                      FaultCase{
                          .name = "KilledByItself", .hooks = "kill@80:0:1", .stops_next = true},
                      FaultCase{.name = "Aborts", .hooks = "abort@80:0:1", .stops_next = true},
                      FaultCase{.name = "Exits", .hooks = "exit@80:0:1", .stops_next = true},
                      FaultCase{.name = "Fails", .hooks = "error@80:0:1", .stops_next = true}),
    NameOf);

}  // namespace
}  // namespace pagoda::e2e::health_faults_test
