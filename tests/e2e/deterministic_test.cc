// The deterministic mode: whatever else is in the batch, and however a prompt was cut into chunks,
// found in the cache, preempted or computed again by another worker, no bit of an output changes.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <signal.h>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/rank_flags.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e::deterministic_test {
namespace {

constexpr int kNumProbes = 12;
constexpr int kNumSenders = 8;

std::vector<uint32_t> Prompt(int num_tokens, int seed) {
  std::vector<uint32_t> prompt;
  std::mt19937 random(static_cast<unsigned>(seed));
  for (int i = 0; i < num_tokens; ++i) prompt.push_back(300 + random() % 3000);
  return prompt;
}

// Greedy and seeded, short and of several chunks, every third with log-probabilities of its prompt.
v1::GenerateRequest Probe(int i) {
  v1::GenerateRequest request = IdsRequest(Prompt(5 + 23 * i, i), 24);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_output()->set_logprobs(3);
  if (i % 3 == 2) request.mutable_output()->set_prompt_logprobs(2);
  if (i % 2 == 1) {
    request.mutable_sampling()->set_temperature(0.9f);
    request.mutable_sampling()->set_top_p(0.95f);
    request.mutable_sampling()->set_seed(static_cast<uint64_t>(100 + i));
  }
  return request;
}

// Log-probabilities as bytes: two floats that differ in a bit differ there.
std::vector<std::string> Bytes(const std::vector<v1::TokenLogprobs>& rows) {
  std::vector<std::string> out;
  for (const v1::TokenLogprobs& row : rows) out.push_back(row.SerializeAsString());
  return out;
}

// Clients that send one request after another, so that as many are in the batch or wait for it.
class Others {
 public:
  Others(TestDaemon& daemon, int num_clients) {
    for (int i = 0; i < num_clients; ++i) {
      clients_.emplace_back([this, &daemon, i] {
        const auto stub = daemon.NewStub();
        for (int call = i; !is_over_.load(); call += 7) {
          v1::GenerateRequest request =
              IdsRequest(Prompt(1 + call * 7 % 90, call), 40 + static_cast<uint32_t>(call % 60));
          request.mutable_stopping()->set_ignore_eos(true);
          if (i % 2 == 1) request.mutable_sampling()->set_temperature(1.0f);
          OpenStream stream(*stub, request, absl::Seconds(300));
          while (!is_over_.load() && stream.Read()) {
          }
          stream.Cancel();
          stream.Finish();
        }
      });
    }
  }
  ~Others() {
    is_over_.store(true);
    for (std::thread& client : clients_) client.join();
  }

 private:
  std::atomic<bool> is_over_{false};
  std::vector<std::thread> clients_;
};

class Deterministic : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    // A pool for a fifth of what 256 streams come to, and prompts of several chunks.
    std::vector<std::string> flags = {"--deterministic",
                                      "--max-num-seqs=256",
                                      "--max-num-batched-tokens=300",
                                      "--block-size=16",
                                      "--kv-cache-memory=24MiB",
                                      "--max-worker-restarts=1000000"};
    for (std::string& flag : RankFlags(GetParam())) flags.push_back(std::move(flag));
    auto daemon = TestDaemon::Start({.flags = std::move(flags)});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    for (int i = 0; i < kNumProbes; ++i) {
      alone_.push_back(Generate(daemon_->stub(), Probe(i)));
      ASSERT_TRUE(alone_.back().status.ok()) << alone_.back().status.error_message();
    }
  }
  // Probes from several senders at once; true when all were as alone, bit by bit.
  void SendProbes(int num_probes) {
    std::atomic<int> next{0};
    std::vector<std::thread> senders;
    for (int sender = 0; sender < kNumSenders; ++sender) {
      senders.emplace_back([&] {
        const auto stub = daemon_->NewStub();
        for (int n = next++; n < num_probes; n = next++) {
          const CallResult& alone = alone_[static_cast<size_t>(n % kNumProbes)];
          const CallResult result = Generate(*stub, Probe(n % kNumProbes), absl::Seconds(300));
          EXPECT_TRUE(result.status.ok()) << result.status.error_message();
          if (!result.status.ok()) continue;
          EXPECT_EQ(result.first().token_ids, alone.first().token_ids);
          EXPECT_EQ(Bytes(result.first().logprobs), Bytes(alone.first().logprobs));
          EXPECT_EQ(Bytes(result.prompt_logprobs), Bytes(alone.prompt_logprobs));
          num_compared_ += result.first().logprobs.size() + result.prompt_logprobs.size();
        }
      });
    }
    for (std::thread& sender : senders) sender.join();
  }
  double Metric(const std::string& name) { return daemon_->Metric(name).value_or(-1); }
  void ProbeAmong(const std::vector<int>& numbers_of_others, int num_probes_each);

  std::unique_ptr<TestDaemon> daemon_;
  std::vector<CallResult> alone_;
  std::atomic<size_t> num_compared_{0};
};

void Deterministic::ProbeAmong(const std::vector<int>& numbers_of_others, int num_probes_each) {
  int num_kills = 0;
  for (const int num_others : numbers_of_others) {
    const Others others(*daemon_, num_others);
    SendProbes(num_probes_each / 2);
    kill(daemon_->WorkerPids().front(), SIGKILL);
    ++num_kills;
    SendProbes(num_probes_each - num_probes_each / 2);
    ASSERT_TRUE(TestDaemon::Eventually(absl::Seconds(60), [&] {
      return Metric("pagoda_worker_restarts_total") >= num_kills;
    })) << daemon_->Log();
    if (HasFailure()) break;
  }
  EXPECT_GT(Metric("pagoda_preemptions_total"), 0);
  EXPECT_GT(Metric("pagoda_prefix_cache_hit_tokens_total"), 0);
  std::printf("%zu rows of log-probabilities compared, %d workers killed\n",
              num_compared_.load(),
              num_kills);
}

TEST_P(Deterministic, ProbesAmongOthers) { ASSERT_NO_FATAL_FAILURE(ProbeAmong({7, 100}, 12)); }

INSTANTIATE_TEST_SUITE_P(Ranks, Deterministic, ::testing::Values(1, 2));

using DeterministicLong = Deterministic;
TEST_P(DeterministicLong, AThousandProbesAmongUpTo256Others) {
  ASSERT_NO_FATAL_FAILURE(ProbeAmong({1, 2, 7, 19, 44, 63, 100, 150, 200, 247}, 100));
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeterministicLong, ::testing::Values(1, 2));

}  // namespace
}  // namespace pagoda::e2e::deterministic_test
