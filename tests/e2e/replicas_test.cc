// Several replicas behind one front end: prefixes are found as in one cache, and what a replica
// loses goes on in another, token for token.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <signal.h>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/health_watch.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e::replicas_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kNumRequests = 16;

// Greedy and seeded, of one sequence, several, the best of several and of beams, with
// log-probabilities, stop strings and a form to keep to.
v1::GenerateRequest RequestOf(int i) {
  constexpr const char* kPrompts[] = {"Once upon a time",
                                      "The fox went down to the river and",
                                      "Lily had a red ball. One day she lost it in the garden, and",
                                      "Tom saw a big dog. The dog said"};
  v1::GenerateRequest request =
      TextRequest(kPrompts[i % 4], 40 + static_cast<uint32_t>((i * 17) % 60));
  v1::SamplingParams* const sampling = request.mutable_sampling();
  request.mutable_stopping()->set_ignore_eos(i % 8 != 7);
  if (i % 2 == 1) {
    sampling->set_temperature(0.9f);
    sampling->set_seed(static_cast<uint64_t>(100 + i));
  }
  if (i % 4 < 2) {
    request.mutable_output()->set_logprobs(i % 3);
    request.mutable_stopping()->add_stop("\n\n");
    request.mutable_stopping()->add_stop("garden tree");
  }
  if (i % 2 == 0 && !IsExactDevice()) request.mutable_output()->set_logprobs(2);
  if (i % 8 == 3) request.mutable_output()->set_n(3);
  if (i % 8 == 4) sampling->mutable_beam_search()->set_width(3);
  if (i % 8 == 5) sampling->mutable_ngram_speculation()->set_max_draft_tokens(6);
  if (i % 8 == 7) sampling->set_regex("([a-z]{3,9} ){4,12}");
  return request;
}

// Whichever thread of the daemon has started them.
std::vector<pid_t> WorkersOf(const TestDaemon& daemon) {
  std::vector<pid_t> workers;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    std::ifstream file(entry.path() / "stat");
    const std::string stat{std::istreambuf_iterator<char>(file), {}};
    // "PID (NAME) STATE PARENT ..."
    const size_t paren = stat.rfind(')');
    pid_t parent = 0;
    char state = 0;
    if (paren == std::string::npos) continue;
    std::istringstream(stat.substr(paren + 1)) >> state >> parent;
    if (parent == daemon.pid() && state != 'Z') workers.push_back(pid);
  }
  return workers;
}

bool IsRight(const CallResult& result, const CallResult& alone) {
  if (!result.status.ok() || result.num_started != 1) return false;
  if (result.sequences.size() != alone.sequences.size()) return false;
  return std::all_of(result.sequences.begin(), result.sequences.end(), [&](const auto& each) {
    return each.second.num_finished == 1 && each.second.SameOutput(alone.sequences.at(each.first));
  });
}

class Replicas : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "two replicas need two cores";
    if (DeviceUnderTest() == "cuda" && std::getenv("PAGODA_RANK_DEVICES") == nullptr)
      GTEST_SKIP() << "two replicas need two GPUs, which $PAGODA_RANK_DEVICES names";
  }
  void Start(std::vector<std::string> flags = {}) {
    flags.insert(flags.begin(), {"--replicas=2", "--max-worker-restarts=1000000"});
    if (DeviceUnderTest() == "cuda")
      flags.push_back(absl::StrCat("--devices=", std::getenv("PAGODA_RANK_DEVICES")));
    auto daemon = TestDaemon::Start({.flags = std::move(flags)});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }
  void RunEachAlone() {
    for (int i = 0; i < kNumRequests; ++i) {
      alone_.push_back(StreamGenerate(daemon_->stub(), RequestOf(i)));
      ASSERT_TRUE(alone_.back().status.ok()) << i << alone_.back().status.error_message();
    }
  }
  void StartClients(int num_clients) {
    for (int client = 0; client < num_clients; ++client)
      clients_.emplace_back([this, client] { RunClient(client); });
  }
  void RunClient(int client) {
    const auto stub = daemon_->NewStub();
    for (int call = 0; !is_over_.load(); ++call) {
      const int i = (client * 5 + call) % kNumRequests;
      OpenStream stream(*stub, RequestOf(i), absl::Seconds(300));
      while (stream.Read()) num_messages_.fetch_add(1);
      stream.result.status = stream.Finish();
      num_calls_.fetch_add(1);
      if (IsRight(stream.result, alone_[static_cast<size_t>(i)])) continue;
      num_wrong_.fetch_add(1);
      ADD_FAILURE() << "request " << i << ": " << stream.result.status.error_code() << " "
                    << stream.result.status.error_message();
    }
  }
  void JoinClients() {
    is_over_.store(true);
    for (std::thread& client : clients_) client.join();
    clients_.clear();
  }
  ~Replicas() override { JoinClients(); }
  bool AwaitMessages(int64_t num_more) {
    const int64_t wanted = num_messages_.load() + num_more;
    return TestDaemon::Eventually(absl::Seconds(120),
                                  [&] { return num_messages_.load() >= wanted; });
  }
  double Metric(const std::string& series) { return daemon_->Metric(series).value_or(-1); }
  double NumTakenOver() {
    return Metric("pagoda_replica_requests_routed_total{replica=\"0\",reason=\"taken_over\"}") +
           Metric("pagoda_replica_requests_routed_total{replica=\"1\",reason=\"taken_over\"}");
  }
  void KillThrough(int num_clients, int num_kills, uint64_t seed);

  std::unique_ptr<TestDaemon> daemon_;
  std::vector<CallResult> alone_;
  std::vector<std::thread> clients_;
  std::atomic<bool> is_over_{false};
  std::atomic<int64_t> num_messages_{0}, num_calls_{0}, num_wrong_{0};
};

void Replicas::KillThrough(int num_clients, int num_kills, uint64_t seed) {
  ASSERT_NO_FATAL_FAILURE(RunEachAlone());
  HealthWatch watch(daemon_->grpc_address());
  ASSERT_TRUE(watch.ReadUntil(true));
  StartClients(num_clients);
  std::mt19937_64 random(seed);
  for (int i = 0; i < num_kills; ++i) {
    ASSERT_TRUE(AwaitMessages(2 * num_clients + static_cast<int64_t>(random() % 200)))
        << daemon_->Log();
    const std::vector<pid_t> workers = WorkersOf(*daemon_);
    ASSERT_EQ(workers.size(), 2u);
    kill(workers[random() % 2], SIGKILL);
    ASSERT_TRUE(TestDaemon::Eventually(absl::Seconds(60), [&] {
      return Metric("pagoda_worker_restarts_total") > i && Metric("pagoda_replica_up") == 2;
    })) << daemon_->Log();
  }
  ASSERT_TRUE(AwaitMessages(10 * num_clients)) << daemon_->Log();
  JoinClients();
  EXPECT_EQ(num_wrong_.load(), 0);
  EXPECT_EQ(Metric("pagoda_worker_restarts_total"), num_kills);
  EXPECT_EQ(Metric("pagoda_requests_quarantined_total"), 0);
  EXPECT_GT(NumTakenOver(), 0);
  for (const char* series : {"pagoda_requests_running", "pagoda_requests_waiting"})
    EXPECT_EQ(Metric(series), 0) << series;
  EXPECT_THAT(daemon_->Log(), ContainsRegex("[0-9]+ requests go on with other workers"));
  // It never said that it does not serve, until it ended.
  daemon_->Signal(SIGTERM);
  EXPECT_EQ(daemon_->WaitForExit(absl::Seconds(60)).value_or(-1), 0) << daemon_->Log();
  EXPECT_THAT(watch.ReadRest(), ::testing::Each(false));
}

TEST_F(Replicas, AKilledOnesStreamsGoOnElsewhere) {
  ASSERT_NO_FATAL_FAILURE(Start({"--max-num-seqs=16", "--max-num-batched-tokens=64"}));
  KillThrough(16, 6, 1);
}

TEST_F(Replicas, AlsoWhereOneAloneHasTooFewBlocks) {
  ASSERT_NO_FATAL_FAILURE(Start({"--max-num-seqs=16",
                                 "--max-num-batched-tokens=32",
                                 IsExactDevice() ? "--block-size=8" : "--block-size=16",
                                 "--kv-cache-memory=4915200"}));
  KillThrough(12, 4, 2);
}

// PAGODA_CHAOS_STREAMS and PAGODA_CHAOS_KILLS choose how many.
int FromEnvironment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  int value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

using ReplicasLong = Replicas;
TEST_F(ReplicasLong, ManyStreamsManyKills) {
  ASSERT_NO_FATAL_FAILURE(Start({"--max-num-seqs=256"}));
  KillThrough(
      FromEnvironment("PAGODA_CHAOS_STREAMS", 256), FromEnvironment("PAGODA_CHAOS_KILLS", 200), 3);
}

TEST_F(Replicas, OneThatIsGivenUpLeavesTheOtherServing) {
  ASSERT_NO_FATAL_FAILURE(Start({"--max-worker-restarts=0", "--max-num-seqs=32"}));
  ASSERT_NO_FATAL_FAILURE(RunEachAlone());
  HealthWatch watch(daemon_->grpc_address());
  ASSERT_TRUE(watch.ReadUntil(true));
  StartClients(10);
  ASSERT_TRUE(AwaitMessages(100));
  const std::vector<pid_t> workers = WorkersOf(*daemon_);
  ASSERT_EQ(workers.size(), 2u);
  kill(workers[0], SIGKILL);
  ASSERT_TRUE(
      TestDaemon::Eventually(absl::Seconds(60), [&] { return Metric("pagoda_replica_up") == 1; }));
  EXPECT_TRUE(AwaitMessages(200)) << daemon_->Log();
  JoinClients();
  EXPECT_EQ(num_wrong_.load(), 0);
  EXPECT_EQ(Metric("pagoda_up_state{state=\"ready\"}"), 1);
  EXPECT_THAT(daemon_->Log(), ContainsRegex("replica [01] is given up: .*; 1 others serve on"));
  kill(workers[1], SIGKILL);
  EXPECT_TRUE(watch.ReadUntil(false));
  EXPECT_EQ(daemon_->WaitForExit(absl::Seconds(30)).value_or(-1), 5) << daemon_->Log();
}

// ---- Prefixes

constexpr size_t kPrefixTokens = 192, kOwnTokens = 16;

v1::GenerateRequest SharingRequest(int group, int number) {
  std::vector<uint32_t> prompt;
  for (size_t i = 0; i < kPrefixTokens; ++i)
    prompt.push_back(static_cast<uint32_t>(10 + (group * 131 + static_cast<int>(i) * 7) % 1500));
  for (size_t i = 0; i < kOwnTokens; ++i)
    prompt.push_back(static_cast<uint32_t>(10 + (number * 37 + static_cast<int>(i) * 3) % 1500));
  v1::GenerateRequest request = IdsRequest(prompt, 4);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

// Prompt tokens found in caches by a load of many groups that share a prefix each.
double NumHitTokens(TestDaemon& daemon, int num_groups, int num_of_each) {
  constexpr int kNumClients = 6;
  std::atomic<int> next{0};
  std::vector<std::thread> clients;
  for (int client = 0; client < kNumClients; ++client) {
    clients.emplace_back([&] {
      const auto stub = daemon.NewStub();
      for (int i = next++; i < num_groups * num_of_each; i = next++) {
        const CallResult result = Generate(*stub, SharingRequest(i % num_groups, i));
        EXPECT_TRUE(result.status.ok()) << result.status.error_message();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  return daemon.Metric("pagoda_prefix_cache_hit_tokens_total").value_or(-1);
}

TEST_F(Replicas, PrefixesAreFoundAsInOneCache) {
  constexpr int kNumGroups = 8, kNumOfEach = 16;
  const std::vector<std::string> flags = {"--max-num-seqs=16"};
  auto one = TestDaemon::Start({.flags = flags});
  ASSERT_TRUE(one.ok()) << one.status();
  const double num_hit_in_one = NumHitTokens(**one, kNumGroups, kNumOfEach);
  one->reset();
  ASSERT_NO_FATAL_FAILURE(Start(flags));
  const double num_hit = NumHitTokens(*daemon_, kNumGroups, kNumOfEach);
  EXPECT_GE(num_hit, 0.95 * num_hit_in_one);
  EXPECT_GT(num_hit_in_one, 0.8 * kNumGroups * (kNumOfEach - 1) * kPrefixTokens);
  // Both were at work.
  for (const char* replica : {"0", "1"}) {
    EXPECT_GE(Metric(absl::StrCat(
                  "pagoda_replica_prefix_cache_query_tokens_total{replica=\"", replica, "\"}")),
              0.2 * kNumGroups * kNumOfEach * (kPrefixTokens + kOwnTokens));
  }
}

// ---- What is told of all together

TEST_F(Replicas, FiguresAreThoseOfAll) {
  if (DeviceUnderTest() == "cuda") GTEST_SKIP() << "GPUs' memory is not divided";
  ASSERT_NO_FATAL_FAILURE(Start({"--max-num-seqs=8", "--kv-cache-memory=64MiB"}));
  auto one = TestDaemon::Start({.flags = {"--max-num-seqs=8", "--kv-cache-memory=32MiB"}});
  ASSERT_TRUE(one.ok()) << one.status();
  const auto model_of = [](TestDaemon& daemon) {
    grpc::ClientContext context;
    v1::GetModelResponse model;
    EXPECT_TRUE(daemon.stub().GetModel(&context, {}, &model).ok());
    return model;
  };
  EXPECT_EQ(model_of(*daemon_).kv_blocks(), 2 * model_of(**one).kv_blocks());
  EXPECT_EQ(model_of(*daemon_).max_sequences(), 16u);
  EXPECT_EQ(Metric("pagoda_kv_blocks"), model_of(*daemon_).kv_blocks());
  EXPECT_EQ(Metric("pagoda_replica_up"), 2);
  // One says nothing by replica.
  EXPECT_FALSE((*one)->Metric("pagoda_replica_up").ok());
  EXPECT_THAT(daemon_->Log(), HasSubstr("replica 1: memory plan: "));
}

TEST_F(Replicas, BadNumbersAreRefused) {
  for (const auto& [flag, words] : {std::pair("--replicas=0", "--replicas"),
                                    std::pair("--replicas=65", "--replicas"),
                                    std::pair("--replicas=two", "--replicas"),
                                    std::pair("--replicas=64", "would wait for each other")}) {
    const CommandResult result =
        RunPagoda({"serve", DefaultModelDir(), "--device=cpu", "--check-config", flag});
    EXPECT_EQ(result.exit_code, 2) << flag;
    EXPECT_THAT(result.err, HasSubstr(words));
  }
}

}  // namespace
}  // namespace pagoda::e2e::replicas_test
