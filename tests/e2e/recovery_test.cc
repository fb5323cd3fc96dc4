// Workers that die, stop, hang or fail while many streams run: each stream sees a pause and nothing
// else. What is killed and when comes from a seed and from what clients have read, not from a
// clock.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <signal.h>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/health_watch.h"
#include "tests/e2e/rank_flags.h"
#include "tests/e2e/test_daemon.h"
#include "tests/e2e/worker_faults.h"

namespace pagoda::e2e::recovery_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kNumRequests = 16;

// Greedy and seeded, half of both with stop strings and log-probabilities.
v1::GenerateRequest RequestOf(int i) {
  constexpr const char* kPrompts[] = {"Once upon a time",
                                      "The fox went down to the river and",
                                      "Lily had a red ball. One day she lost it in the garden, and",
                                      "Tom saw a big dog. The dog said"};
  v1::GenerateRequest request =
      TextRequest(kPrompts[i % 4], 40 + static_cast<uint32_t>((i * 17) % 60));
  request.mutable_stopping()->set_ignore_eos(true);
  if (i % 2 == 1) {
    request.mutable_sampling()->set_temperature(0.9f);
    request.mutable_sampling()->set_seed(static_cast<uint64_t>(100 + i));
  }
  if (i % 4 < 2) {
    request.mutable_output()->set_logprobs(i % 3);
    request.mutable_stopping()->add_stop("\n\n");
    request.mutable_stopping()->add_stop("garden tree");
  }
  if (i % 2 == 0 && !IsExactDevice()) request.mutable_output()->set_logprobs(2);
  return request;
}

// Streams that are read again and again until they are told to end.
class Clients {
 public:
  Clients(TestDaemon* daemon, const std::vector<CallResult>* alone)
      : daemon_(*daemon), alone_(*alone) {}
  ~Clients() { Join(); }

  void Start(int num_clients) {
    reads_.resize(static_cast<size_t>(num_clients));
    for (int i = 0; i < num_clients; ++i) threads_.emplace_back([this, i] { Run(i); });
  }
  // False: nothing has come for a minute.
  bool AwaitMessages(int64_t num_more) {
    const int64_t wanted = num_messages_.load() + num_more;
    return TestDaemon::Eventually(absl::Seconds(60),
                                  [&] { return num_messages_.load() >= wanted; });
  }
  void Join() {
    is_over_.store(true);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  int64_t num_calls() const { return num_calls_.load(); }
  int64_t num_wrong() const { return num_wrong_.load(); }

  // From a moment to each stream's next message, of streams that were being read. After Join.
  std::vector<double> PausesMs(const std::vector<absl::Time>& moments) const {
    std::vector<double> pauses;
    for (const absl::Time moment : moments) {
      for (const std::vector<Read>& reads : reads_) {
        const auto next =
            std::upper_bound(reads.begin(), reads.end(), moment, [](absl::Time t, const Read& r) {
              return t < r.time;
            });
        const bool was_open = next != reads.begin() && next != reads.end() && !next->is_first;
        if (was_open) pauses.push_back(absl::ToDoubleMilliseconds(next->time - moment));
      }
    }
    std::sort(pauses.begin(), pauses.end());
    return pauses;
  }

 private:
  struct Read {
    absl::Time time;
    bool is_first;
  };

  void Run(int client) {
    const auto stub = daemon_.NewStub();
    for (int call = 0; !is_over_.load(); ++call) {
      const int i = (client * 5 + call) % kNumRequests;
      OpenStream stream(*stub, RequestOf(i), absl::Seconds(300));
      for (bool is_first = true; stream.Read(); is_first = false) {
        reads_[static_cast<size_t>(client)].push_back({absl::Now(), is_first});
        num_messages_.fetch_add(1);
      }
      const grpc::Status status = stream.Finish();
      Check(i, status, stream.result);
      num_calls_.fetch_add(1);
    }
  }

  void Check(int i, const grpc::Status& status, const CallResult& result) {
    const CallResult& alone = alone_[static_cast<size_t>(i)];
    const bool is_right = status.ok() && result.num_started == 1 && result.sequences.size() == 1 &&
                          result.first().num_finished == 1 &&
                          result.first().SameOutput(alone.first());
    if (is_right) return;
    num_wrong_.fetch_add(1);
    ADD_FAILURE() << "request " << i << ": " << status.error_code() << " "
                  << status.error_message();
  }

  TestDaemon& daemon_;
  const std::vector<CallResult>& alone_;
  std::vector<std::thread> threads_;
  std::vector<std::vector<Read>> reads_;  // by client, written by its thread
  std::atomic<bool> is_over_{false};
  std::atomic<int64_t> num_messages_{0}, num_calls_{0}, num_wrong_{0};
};

class Recovery : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> flags = {}) {
    flags.insert(flags.begin(), "--max-worker-restarts=1000000");
    auto daemon = TestDaemon::Start({.flags = std::move(flags)});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }
  void RunEachAlone() {
    for (int i = 0; i < kNumRequests; ++i) {
      alone_.push_back(StreamGenerate(daemon_->stub(), RequestOf(i)));
      ASSERT_TRUE(alone_.back().status.ok()) << alone_.back().status.error_message();
    }
  }
  void SignalWorkers(int signal) {
    for (const pid_t worker : daemon_->WorkerPids()) kill(worker, signal);
  }
  double Restarts(const std::string& cause) {
    return daemon_->Metric(absl::StrCat("pagoda_worker_restarts_total{cause=\"", cause, "\"}"))
        .value_or(-1);
  }
  double Restarts() { return daemon_->Metric("pagoda_worker_restarts_total").value_or(-1); }
  // Kills and stops while streams run; prints how long they paused.
  void StrikeThrough(int num_clients, int num_kills, int num_stops, uint64_t seed);

  std::unique_ptr<TestDaemon> daemon_;
  std::vector<CallResult> alone_;
};

double Percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0.0;
  return sorted[std::min(sorted.size() - 1, static_cast<size_t>(p * sorted.size()))];
}

void Recovery::StrikeThrough(int num_clients, int num_kills, int num_stops, uint64_t seed) {
  ASSERT_NO_FATAL_FAILURE(RunEachAlone());
  Clients clients(daemon_.get(), &alone_);
  clients.Start(num_clients);
  std::mt19937_64 random(seed);
  std::vector<absl::Time> kills, stops;
  for (int i = 0; i < num_kills + num_stops; ++i) {
    ASSERT_TRUE(clients.AwaitMessages(num_clients + static_cast<int64_t>(random() % 200)))
        << daemon_->Log();
    const bool is_stop = i % ((num_kills + num_stops) / std::max(num_stops, 1)) == 1 &&
                         static_cast<int>(stops.size()) < num_stops;
    (is_stop ? stops : kills).push_back(absl::Now());
    SignalWorkers(is_stop ? SIGSTOP : SIGKILL);
    // A signal to workers that are gone already, or not yet there, would not count.
    ASSERT_TRUE(TestDaemon::Eventually(absl::Seconds(60), [&] {
      return Restarts() > i && daemon_->Metric("pagoda_recovery_seconds_count").value_or(-1) > i;
    })) << daemon_->Log();
  }
  ASSERT_TRUE(clients.AwaitMessages(10 * num_clients)) << daemon_->Log();
  clients.Join();
  EXPECT_EQ(clients.num_wrong(), 0);
  EXPECT_EQ(Restarts("killed"), static_cast<double>(kills.size()));
  EXPECT_EQ(Restarts("stopped"), static_cast<double>(stops.size()));
  EXPECT_EQ(Restarts(), num_kills + num_stops);
  EXPECT_EQ(daemon_->Metric("pagoda_requests_quarantined_total").value_or(-1), 0);
  const std::vector<double> kill_ms = clients.PausesMs(kills), stop_ms = clients.PausesMs(stops);
  std::printf(
      "%d streams, %zu kills, %zu stops, %ld calls: pause p50 %.0f ms, p99 %.0f ms after "
      "kills; p50 %.0f ms, p99 %.0f ms after stops\n",
      num_clients,
      kills.size(),
      stops.size(),
      static_cast<long>(clients.num_calls()),
      Percentile(kill_ms, 0.5),
      Percentile(kill_ms, 0.99),
      Percentile(stop_ms, 0.5),
      Percentile(stop_ms, 0.99));
  daemon_->Signal(SIGTERM);
  EXPECT_EQ(daemon_->WaitForExit(absl::Seconds(60)).value_or(-1), 0) << daemon_->Log();
}

TEST_F(Recovery, StreamsSeeAPauseAndNothingElse) {
  ASSERT_NO_FATAL_FAILURE(Start({"--max-num-seqs=16", "--max-num-batched-tokens=64"}));
  StrikeThrough(16, 6, 1, 1);
}

TEST_F(Recovery, WithAPoolThatPreempts) {
  // 600 tokens of the shipped model, which 12 streams outgrow.
  ASSERT_NO_FATAL_FAILURE(Start({"--max-num-seqs=16",
                                 "--max-num-batched-tokens=32",
                                 IsExactDevice() ? "--block-size=8" : "--block-size=16",
                                 "--kv-cache-memory=2457600"}));
  StrikeThrough(12, 4, 0, 2);
}

// ---- Ranks that share the model: whichever is lost, all are replaced.

using RecoveryOfRanks = Recovery;

std::vector<std::string> FlagsOfTwo(std::vector<std::string> others = {}) {
  for (std::string& flag : RankFlags(2)) others.push_back(std::move(flag));
  return others;
}

// The oldest step that is not answered: a device that works behind its worker has two of them.
std::string LostAt(const char* cause, int rank, int step) {
  return absl::StrCat(
      "workers lost \\(",
      cause,
      "\\): rank ",
      rank,
      ", operation step, step ",
      IsExactDevice() ? absl::StrCat(step) : absl::StrCat("(", step - 1, "|", step, ")"));
}

TEST_F(RecoveryOfRanks, ALossOfAny) {
  ASSERT_NO_FATAL_FAILURE(Start(FlagsOfTwo({"--max-num-seqs=16"})));
  ASSERT_NO_FATAL_FAILURE(RunEachAlone());
  Clients clients(daemon_.get(), &alone_);
  clients.Start(8);
  int num_lost = 0;
  for (const int signal : {SIGKILL, SIGSTOP}) {
    for (const size_t rank : {0, 1}) {
      ASSERT_TRUE(clients.AwaitMessages(100)) << daemon_->Log();
      std::vector<pid_t> before = daemon_->WorkerPids();
      ASSERT_EQ(before.size(), 2u);
      // Ranks start in their order.
      std::sort(before.begin(), before.end());
      kill(before[rank], signal);
      ++num_lost;
      ASSERT_TRUE(TestDaemon::Eventually(absl::Seconds(60), [&] {
        return daemon_->Metric("pagoda_recovery_seconds_count").value_or(-1) == num_lost;
      })) << daemon_->Log();
      for (const pid_t worker : before) EXPECT_NE(kill(worker, 0), 0) << daemon_->Log();
      EXPECT_THAT(daemon_->Log(),
                  HasSubstr(absl::StrCat("workers lost (",
                                         signal == SIGKILL ? "killed" : "stopped",
                                         "): rank ",
                                         rank,
                                         ", operation ")));
    }
  }
  ASSERT_TRUE(clients.AwaitMessages(100)) << daemon_->Log();
  clients.Join();
  EXPECT_EQ(clients.num_wrong(), 0);
  EXPECT_EQ(Restarts(), 4);
}

TEST_F(RecoveryOfRanks, FailuresThatTheyBringAboutThemselves) {
  ASSERT_NO_FATAL_FAILURE(Start(FlagsOfTwo()));
  ASSERT_NO_FATAL_FAILURE(RunEachAlone());
  const WorkerFaults faults("abort@60:1:1,error@40:1:2,hang@50:1:3,hang@50:0:4");
  ASSERT_NO_FATAL_FAILURE(Start(FlagsOfTwo({"--step-timeout=3s"})));
  Clients clients(daemon_.get(), &alone_);
  clients.Start(12);
  EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(120), [&] { return Restarts() == 4; }))
      << daemon_->Log();
  EXPECT_TRUE(clients.AwaitMessages(100)) << daemon_->Log();
  clients.Join();
  EXPECT_EQ(clients.num_wrong(), 0);
  EXPECT_EQ(daemon_->Metric("pagoda_requests_quarantined_total").value_or(-1), 0);
  for (const std::string& line : {LostAt("crashed", 1, 60),
                                  LostAt("error", 1, 40),
                                  LostAt("stuck", 1, 50),
                                  LostAt("stuck", 0, 50)}) {
    EXPECT_THAT(daemon_->Log(), ContainsRegex(line));
  }
}

// PAGODA_CHAOS_STREAMS and PAGODA_CHAOS_KILLS choose how many.
int FromEnvironment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  int value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

using RecoveryLong = Recovery;
TEST_F(RecoveryLong, ManyStreamsManyKills) {
  ASSERT_NO_FATAL_FAILURE(Start({"--max-num-seqs=256"}));
  const int num_kills = FromEnvironment("PAGODA_CHAOS_KILLS", 200);
  StrikeThrough(FromEnvironment("PAGODA_CHAOS_STREAMS", 256), num_kills, num_kills / 20, 3);
}

TEST_F(Recovery, FailuresThatWorkersBringAboutThemselves) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(RunEachAlone());
  const WorkerFaults faults(
      "delay100@5:0:1,abort@60:0:1,error@40:0:2,exit@45:0:3,hang@50:0:4,kill@41:0:5");
  ASSERT_NO_FATAL_FAILURE(Start({"--step-timeout=3s"}));
  Clients clients(daemon_.get(), &alone_);
  clients.Start(12);
  EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(120), [&] { return Restarts("killed") == 1; }))
      << daemon_->Log();
  EXPECT_TRUE(clients.AwaitMessages(100));
  clients.Join();
  EXPECT_EQ(clients.num_wrong(), 0);
  EXPECT_EQ(Restarts("crashed"), 2);
  EXPECT_EQ(Restarts("error"), 1);
  EXPECT_EQ(Restarts("stuck"), 1);
  EXPECT_EQ(daemon_->Metric("pagoda_requests_quarantined_total").value_or(-1), 0);
  // One line has rank, operation and step.
  EXPECT_THAT(daemon_->Log(), ContainsRegex(LostAt("crashed", 0, 60)));
  EXPECT_THAT(daemon_->Log(), ContainsRegex(LostAt("error", 0, 40)));
}

TEST_F(Recovery, APoisonousRequestIsFoundAndTheOthersGoOn) {
  constexpr uint32_t kPoison = 1234;
  const WorkerFaults faults(absl::StrCat("abort#", kPoison, ":0:*"));
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(RunEachAlone());
  Clients clients(daemon_.get(), &alone_);
  clients.Start(8);
  ASSERT_TRUE(clients.AwaitMessages(50));
  const v1::GenerateRequest poison = IdsRequest({5, kPoison, 7}, 20);
  const CallResult result = StreamGenerate(daemon_->stub(), poison);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INTERNAL)
      << result.status.error_message();
  ASSERT_TRUE(clients.AwaitMessages(100));
  // Not tried again: no worker ends.
  const double num_restarts = daemon_->Metric("pagoda_worker_restarts_total").value_or(-1);
  EXPECT_EQ(StreamGenerate(daemon_->stub(), poison).status.error_code(),
            grpc::StatusCode::INTERNAL);
  ASSERT_TRUE(clients.AwaitMessages(100));
  EXPECT_EQ(daemon_->Metric("pagoda_worker_restarts_total").value_or(-1), num_restarts);
  EXPECT_LE(num_restarts, 6);
  clients.Join();
  EXPECT_EQ(clients.num_wrong(), 0);
  EXPECT_EQ(daemon_->Metric("pagoda_requests_quarantined_total").value_or(-1), 1);
}

TEST_F(Recovery, WorkersThatFailAtOnceAgainAndAgainEndTheDaemon) {
  const WorkerFaults faults("exit@3:0:*");
  ASSERT_NO_FATAL_FAILURE(Start({"--max-worker-restarts=4"}));
  HealthWatch watch(daemon_->grpc_address());
  ASSERT_TRUE(watch.ReadUntil(true));
  std::vector<std::unique_ptr<OpenStream>> streams;
  for (int i = 0; i < 6; ++i) {
    streams.push_back(std::make_unique<OpenStream>(daemon_->stub(), RequestOf(i)));
  }
  for (const auto& stream : streams) {
    const grpc::StatusCode code = stream->Finish().error_code();
    EXPECT_TRUE(code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::INTERNAL)
        << code;
  }
  EXPECT_TRUE(watch.ReadUntil(false));
  EXPECT_EQ(daemon_->WaitForExit(absl::Seconds(30)).value_or(-1), 5) << daemon_->Log();
  EXPECT_THAT(daemon_->Log(), HasSubstr("workers were lost more than 4 times in 600 s"));
}

// Workers that a restart has started die with the daemon as the first ones do.
TEST_F(Recovery, AKilledDaemonLeavesNoReplacedWorker) {
  for (int round = 0; round < 5; ++round) {
    const bool has_ranks = round % 2 == 1;
    ASSERT_NO_FATAL_FAILURE(
        Start(has_ranks ? FlagsOfTwo() : std::vector<std::string>{"--max-num-seqs=16"}));
    OpenStream stream(daemon_->stub(), TextRequest("Once upon a time", 500));
    ASSERT_TRUE(stream.ReadFirstToken());
    const std::vector<pid_t> first = daemon_->WorkerPids();
    SignalWorkers(SIGKILL);
    std::vector<pid_t> workers;
    // At once, while it starts the next, or when that one runs.
    if (round > 0) {
      EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(20), [&] {
        workers = daemon_->WorkerPids();
        return !workers.empty() && workers != first;
      }));
    }
    if (round > 2) {
      EXPECT_TRUE(stream.Read());
    }
    daemon_->Signal(SIGKILL);
    EXPECT_EQ(daemon_->WaitForExit(absl::Seconds(5)).value_or(-1), 128 + SIGKILL);
    for (const pid_t worker : workers) {
      EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(2), [&] { return kill(worker, 0) != 0; }));
    }
  }
}

}  // namespace
}  // namespace pagoda::e2e::recovery_test
