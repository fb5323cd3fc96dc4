// Faults while many clients are served: every call ends once, with what it would have got alone or
// with an error that says to try again; health tells the truth; nothing is left behind; the next
// start works. The moment of a fault comes from a seed; nothing here waits for a time.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <signal.h>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/mutex.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/health_watch.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e::chaos_test {
namespace {

namespace fs = std::filesystem;
using grpc::StatusCode;

enum class Fault {
  kNone,  // only clients misbehave
  kWorkerPaused,
  kWorkerKilled,
  kWorkerStuck,
  kWorkerGivenUp,  // killed, and not replaced
  kDrained,
  kDrainedAtOnce,
  kDaemonKilled,
};
constexpr std::array kFaults = {Fault::kNone,
                                Fault::kWorkerPaused,
                                Fault::kWorkerKilled,
                                Fault::kWorkerStuck,
                                Fault::kWorkerGivenUp,
                                Fault::kDrained,
                                Fault::kDrainedAtOnce,
                                Fault::kDaemonKilled};

const char* NameOf(Fault fault) {
  constexpr const char* kNames[] = {"None",
                                    "WorkerPaused",
                                    "WorkerKilled",
                                    "WorkerStuck",
                                    "WorkerGivenUp",
                                    "Drained",
                                    "DrainedAtOnce",
                                    "DaemonKilled"};
  return kNames[static_cast<size_t>(fault)];
}

bool IsReplaced(Fault fault) {
  return fault == Fault::kWorkerKilled || fault == Fault::kWorkerStuck;
}

bool DaemonSurvives(Fault fault) {
  return fault == Fault::kNone || fault == Fault::kWorkerPaused || IsReplaced(fault);
}

int ExpectedExitCode(Fault fault) {
  if (fault == Fault::kDaemonKilled) return 128 + SIGKILL;
  return fault == Fault::kWorkerGivenUp ? 5 : 0;
}

// ---- What clients ask for

constexpr int kNumRequests = 12;

// Greedy and seeded, with log-probabilities, stop strings and several sequences.
v1::GenerateRequest RequestOf(int i) {
  constexpr const char* kPrompts[] = {
      "Once upon a time",
      "The fox went down to the river and",
      "Lily had a red ball. One day she lost it in the garden, and"};
  v1::GenerateRequest request =
      TextRequest(kPrompts[i % 3], 20 + static_cast<uint32_t>((i * 11) % 45));
  request.mutable_stopping()->set_ignore_eos(true);
  if (i % 2 == 1) {
    request.mutable_sampling()->set_temperature(0.9f);
    request.mutable_sampling()->set_seed(static_cast<uint64_t>(100 + i));
  }
  if (i % 3 == 0) request.mutable_output()->set_logprobs(i % 4);
  if (i % 4 == 1) request.mutable_output()->set_n(2);
  if (i % 4 == 2) {
    request.mutable_stopping()->add_stop(" and");
    request.mutable_stopping()->add_stop("\n\n");
  }
  return request;
}

enum class Manner { kReads, kCallsUnary, kCancels, kHasDeadline };

struct Client {
  Manner manner = Manner::kReads;
  int first_request = 0;
  int reads_before_cancel = 0;
  absl::Duration deadline = absl::Seconds(120);
};

Client MakeClient(int i, std::mt19937_64& random) {
  constexpr Manner kManners[] = {Manner::kReads,
                                 Manner::kCancels,
                                 Manner::kReads,
                                 Manner::kCallsUnary,
                                 Manner::kHasDeadline,
                                 Manner::kReads};
  Client client;
  client.manner = kManners[i % std::size(kManners)];
  client.first_request = static_cast<int>(random() % kNumRequests);
  client.reads_before_cancel = static_cast<int>(random() % 20);
  if (client.manner == Manner::kHasDeadline)
    client.deadline = absl::Milliseconds(20 + random() % 400);
  return client;
}

// ---- What they may get

bool IsBeginning(const CallResult::Sequence& part, const CallResult::Sequence& whole) {
  return part.token_ids.size() <= whole.token_ids.size() &&
         std::equal(part.token_ids.begin(), part.token_ids.end(), whole.token_ids.begin()) &&
         absl::StartsWith(whole.text, part.text);
}

void CheckOutput(const CallResult& result, const CallResult& alone) {
  EXPECT_LE(result.num_started, 1);
  for (const auto& [index, sequence] : result.sequences) {
    ASSERT_EQ(alone.sequences.count(index), 1u);
    EXPECT_TRUE(IsBeginning(sequence, alone.sequences.at(index))) << index;
    EXPECT_LE(sequence.num_finished, 1);
  }
  if (!result.status.ok()) return;
  ASSERT_EQ(result.sequences.size(), alone.sequences.size());
  for (const auto& [index, sequence] : result.sequences) {
    EXPECT_TRUE(sequence.SameOutput(alone.sequences.at(index))) << index;
    EXPECT_EQ(sequence.num_finished, 1);
  }
}

void CheckStatus(const CallResult& result, Manner manner, Fault fault) {
  const StatusCode code = result.status.error_code();
  const std::string shown = absl::StrCat(code, ": ", result.status.error_message());
  switch (code) {
    case StatusCode::OK:
      return;
    case StatusCode::CANCELLED:
      // gRPC itself cancels a call that reaches a server in the moment in which it closes.
      if (!DaemonSurvives(fault) && result.num_started == 0) return;
      EXPECT_EQ(manner, Manner::kCancels) << shown;
      return;
    case StatusCode::DEADLINE_EXCEEDED:
      EXPECT_EQ(manner, Manner::kHasDeadline) << shown;
      return;
    case StatusCode::UNAVAILABLE:
      EXPECT_FALSE(DaemonSurvives(fault)) << shown;
      // Of a killed daemon only the connection's end is seen.
      if (result.num_started > 0 && fault != Fault::kDaemonKilled) {
        EXPECT_TRUE(HasRetryInfo(result.status)) << shown;
        EXPECT_NE(fault, Fault::kDrained) << "a drain lets running streams finish";
      }
      return;
    default:
      ADD_FAILURE() << shown;
  }
}

// ---- A round: a daemon, its clients and a fault

// Messages that clients have read so far. Thread-safe.
class Progress {
 public:
  void Count() {
    MutexLock lock(&mutex_);
    ++num_messages_;
  }
  void ClientEnded() {
    MutexLock lock(&mutex_);
    ++num_ended_;
  }
  // False when every client has ended before.
  bool Await(int num_messages, int num_clients) {
    MutexLock lock(&mutex_);
    const auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return num_messages_ >= num_messages || num_ended_ == num_clients;
    };
    mutex_.Await(absl::Condition(&settled));
    return num_messages_ >= num_messages;
  }

 private:
  Mutex mutex_;
  int num_messages_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_ended_ ABSL_GUARDED_BY(mutex_) = 0;
};

std::vector<std::string> SharedMemoryOfPagoda() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/dev/shm", error)) {
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, "pagoda")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Of the shipped model; 600 tokens in blocks of 8, which 16 sequences outgrow.
constexpr int kTokenBytes = 4096;
constexpr int kPoolBytes = 600 * kTokenBytes;

struct RoundOptions {
  Fault fault = Fault::kNone;
  uint64_t seed = 1;
  int num_clients = 16;
};

class Round {
 public:
  explicit Round(const RoundOptions& options) : options_(options), random_(options.seed) {}

  void Run() {
    const std::vector<std::string> shared_memory = SharedMemoryOfPagoda();
    ASSERT_NO_FATAL_FAILURE(Start());
    ASSERT_NO_FATAL_FAILURE(RunEachAlone());
    HealthWatch watch(daemon_->grpc_address());
    ASSERT_TRUE(watch.ReadUntil(true));
    std::vector<pid_t> workers = daemon_->WorkerPids();
    ASSERT_FALSE(workers.empty());

    ServeThrough(workers);
    if (DaemonSurvives(options_.fault)) {
      CheckNothingRuns();
      CheckServes();
      EXPECT_EQ(daemon_->Metric("pagoda_worker_restarts_total").value_or(-1),
                IsReplaced(options_.fault) ? 1 : 0);
      for (const pid_t worker : daemon_->WorkerPids()) workers.push_back(worker);
      daemon_->Signal(SIGTERM);
    }
    CheckEnd(workers, watch);
    EXPECT_EQ(SharedMemoryOfPagoda(), shared_memory);
    CheckNextStart();
  }

 private:
  TestDaemonOptions DaemonOptions() const {
    // Batches and blocks small enough that prompts are chunked and sequences wait and are
    // preempted.
    TestDaemonOptions options = {.flags = {"--max-num-seqs=16",
                                           "--max-num-batched-tokens=32",
                                           "--block-size=8",
                                           absl::StrCat("--kv-cache-memory=", kPoolBytes),
                                           "--drain-timeout=60s"}};
    if (options_.fault == Fault::kWorkerStuck) options.flags.push_back("--step-timeout=3s");
    if (options_.fault == Fault::kWorkerGivenUp) {
      options.flags.push_back("--max-worker-restarts=0");
    }
    options.dir = dir_.string();
    return options;
  }

  void Start() {
    std::string name = (fs::temp_directory_path() / "pagoda-chaos-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
    auto daemon = TestDaemon::Start(DaemonOptions());
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }

  void RunEachAlone() {
    for (int i = 0; i < kNumRequests; ++i) {
      alone_.push_back(StreamGenerate(daemon_->stub(), RequestOf(i)));
      ASSERT_TRUE(alone_.back().status.ok()) << alone_.back().status.error_message();
    }
  }

  // Each client makes a few calls; a process of its own vanishes with its connection.
  void ServeThrough(const std::vector<pid_t>& workers) {
    std::vector<std::thread> threads;
    for (int i = 0; i < options_.num_clients; ++i) {
      const Client client = MakeClient(i, random_);
      threads.emplace_back([this, client] { RunClient(client); });
    }
    {
      const PagodaProcess vanishing({"generate",
                                     "Once upon a time",
                                     "--address=" + daemon_->grpc_address(),
                                     "--max-tokens=500",
                                     "--ignore-eos"});
      const int moment = 1 + static_cast<int>(random_() % (10 * options_.num_clients));
      EXPECT_TRUE(progress_.Await(moment, options_.num_clients)) << "the fault comes too late";
    }
    Strike(workers);
    for (std::thread& thread : threads) thread.join();
  }

  void Strike(const std::vector<pid_t>& workers) {
    const auto signal_workers = [&workers](int signal) {
      for (const pid_t worker : workers) kill(worker, signal);
    };
    switch (options_.fault) {
      case Fault::kNone:
        return;
      case Fault::kWorkerPaused:
        signal_workers(SIGSTOP);
        // Late is not lost.
        EXPECT_TRUE(daemon_->ScrapeMetrics().ok());
        signal_workers(SIGCONT);
        return;
      case Fault::kWorkerKilled:
      case Fault::kWorkerGivenUp:
        return signal_workers(SIGKILL);
      case Fault::kWorkerStuck:
        return signal_workers(SIGSTOP);
      case Fault::kDrained:
        return daemon_->Signal(SIGTERM);
      case Fault::kDrainedAtOnce: {
        HealthWatch watch(daemon_->grpc_address());
        EXPECT_TRUE(watch.ReadUntil(true));
        daemon_->Signal(SIGTERM);
        watch.ReadUntil(false);  // else the two signals could become one
        return daemon_->Signal(SIGTERM);
      }
      case Fault::kDaemonKilled:
        return daemon_->Signal(SIGKILL);
    }
  }

  // Client thread.
  void RunClient(const Client& client) {
    const auto stub = daemon_->NewStub();
    for (int call = 0; call < 3; ++call) {
      const int i = (client.first_request + call) % kNumRequests;
      SCOPED_TRACE(
          absl::StrCat("request ", i, " of a client of manner ", static_cast<int>(client.manner)));
      const CallResult result = Call(*stub, RequestOf(i), client);
      CheckOutput(result, alone_[static_cast<size_t>(i)]);
      CheckStatus(result, client.manner, options_.fault);
      if (result.status.error_code() == StatusCode::UNAVAILABLE) break;
    }
    progress_.ClientEnded();
  }

  CallResult Call(v1::InferenceService::Stub& stub,
                  const v1::GenerateRequest& request,
                  const Client& client) {
    if (client.manner == Manner::kCallsUnary) {
      CallResult result = Generate(stub, request, client.deadline, /*waits_for_daemon=*/false);
      progress_.Count();
      return result;
    }
    OpenStream stream(stub, request, client.deadline, /*waits_for_daemon=*/false);
    for (int reads = 0; stream.Read(); ++reads) {
      progress_.Count();
      if (client.manner == Manner::kCancels && reads == client.reads_before_cancel) stream.Cancel();
    }
    stream.Finish();
    return std::move(stream.result);
  }

  void CheckNothingRuns() {
    for (const char* series : {"pagoda_requests_running",
                               "pagoda_requests_waiting",
                               "pagoda_kv_blocks{pool=\"0\",state=\"used\"}",
                               "pagoda_grpc_streams"}) {
      EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(10), [&] {
        return daemon_->Metric(series).value_or(-1) == 0;
      })) << series;
    }
  }

  void CheckServes() {
    const CallResult again = StreamGenerate(daemon_->stub(), RequestOf(0));
    EXPECT_TRUE(again.status.ok()) << again.status.error_message();
    CheckOutput(again, alone_[0]);
  }

  void CheckEnd(const std::vector<pid_t>& workers, HealthWatch& watch) {
    const Fault fault = options_.fault;
    const int exit_code = daemon_->WaitForExit(absl::Seconds(60)).value_or(-1);
    const bool is_cut_off = fault == Fault::kDrainedAtOnce && exit_code == 13;
    EXPECT_TRUE(is_cut_off || exit_code == ExpectedExitCode(fault)) << exit_code << "\n"
                                                                    << daemon_->Log();
    for (const pid_t worker : workers) {
      EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(10), [&] { return kill(worker, 0) != 0; }));
    }
    const std::vector<bool> rest = watch.ReadRest();
    if (fault == Fault::kDaemonKilled) {
      EXPECT_THAT(rest, ::testing::IsEmpty());
      return;
    }
    // It was told that it is over: once, unless workers were late or gone before.
    ASSERT_THAT(rest, ::testing::Not(::testing::IsEmpty()));
    EXPECT_FALSE(rest.back());
    if (fault != Fault::kWorkerPaused && !IsReplaced(fault)) {
      EXPECT_THAT(rest, ::testing::Each(false));
    }
    EXPECT_FALSE(fs::exists(dir_ / "grpc.sock"));
  }

  void CheckNextStart() {
    daemon_.reset();
    auto daemon = TestDaemon::Start(DaemonOptions());
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    CheckServes();
    daemon_->Signal(SIGTERM);
    EXPECT_EQ(daemon_->WaitForExit(absl::Seconds(30)).value_or(-1), 0) << daemon_->Log();
    std::error_code ignored;
    fs::remove_all(dir_, ignored);
  }

  const RoundOptions options_;
  std::mt19937_64 random_;
  fs::path dir_;
  std::unique_ptr<TestDaemon> daemon_;
  std::vector<CallResult> alone_;  // by request; constant while clients run
  Progress progress_;
};

class Chaos : public ::testing::TestWithParam<Fault> {};

TEST_P(Chaos, EveryCallEndsOnceAndTheNextStartWorks) {
  Round({.fault = GetParam(), .seed = 20 + static_cast<uint64_t>(GetParam())}).Run();
}

INSTANTIATE_TEST_SUITE_P(Faults, Chaos, ::testing::ValuesIn(kFaults), [](const auto& info) {
  return std::string(NameOf(info.param));
});

// PAGODA_CHAOS_ROUNDS and PAGODA_CHAOS_SEED choose how many and which.
uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

TEST(ChaosLong, RandomRounds) {
  const uint64_t first_seed = FromEnvironment("PAGODA_CHAOS_SEED", 1);
  const uint64_t num_rounds = FromEnvironment("PAGODA_CHAOS_ROUNDS", 42);
  for (uint64_t seed = first_seed; seed < first_seed + num_rounds && !HasFailure(); ++seed) {
    const Fault fault = kFaults[seed % kFaults.size()];
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", ", NameOf(fault)));
    std::mt19937_64 random(seed);
    Round({.fault = fault, .seed = seed, .num_clients = 16 + static_cast<int>(random() % 80)})
        .Run();
  }
}

}  // namespace
}  // namespace pagoda::e2e::chaos_test
