// A million steps of the whole engine from a seed: random systems, requests, cancellations,
// deadlines and faults. The fake worker checks every plan and every position that a row reads; the
// test checks every request's end and tokens. $PAGODA_FIRST_SEED (1) begins elsewhere.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "tests/fakes/engine_harness.h"

namespace pagoda::engine {
namespace {

constexpr uint32_t kVocab = 50;
// Tokens that shared beginnings are made of; the last of them is the poisonous one.
constexpr uint32_t kNumShared = 13;

// What follows is a function of the last token most of the time, so that drafts are right.
uint32_t SampleRepetitively(const std::vector<uint32_t>& tokens, uint64_t seed) {
  const uint64_t change = tokens.size() % 9 == 0 ? seed : 0;
  return static_cast<uint32_t>((tokens.back() * 7 + 1 + change) % kVocab);
}

class RandomRun {
 public:
  explicit RandomRun(uint64_t seed) : random_(seed), harness_(RandomOptions()) {}

  void Run(uint64_t num_steps);
  uint64_t num_steps() const { return harness_.pipe.num_steps(); }
  uint64_t num_preemptions() const { return harness_.metrics.preemptions.value(); }
  uint64_t num_hit_tokens() const { return harness_.metrics.prefix_hit_tokens.value(); }
  uint64_t num_drafts() const { return harness_.pipe.num_drafts(); }
  uint64_t num_drafts_accepted() const { return harness_.pipe.num_drafts_accepted(); }
  uint64_t num_blocks_copied() const { return harness_.pipe.num_blocks_copied(); }
  uint64_t num_requests() const { return requests_.size(); }
  uint64_t num_restarts() const { return harness_.pipe.num_restarts(); }
  uint64_t num_quarantined() const { return harness_.metrics.quarantined_requests.value(); }

 private:
  int32_t Draw(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }
  bool OneIn(int32_t n) { return Draw(1, n) == 1; }

  EngineHarness::Options RandomOptions();
  std::vector<TokenId> RandomPrompt();
  void SubmitOne();
  void LoseWorkers();
  bool recovers() const { return harness_.options.config.max_worker_restarts() > 0; }
  void Act();
  void CheckGauges();
  void CheckEnd(const Request& request);
  void CheckSequence(const Request& request, int32_t index, const CollectedSequence& sequence);

  std::mt19937_64 random_;
  const bool has_tenants_ = OneIn(2);
  EngineHarness harness_;
  std::map<uint64_t, Request> requests_;  // accepted ones
  std::map<uint64_t, bool> is_cancelled_;
};

EngineHarness::Options RandomRun::RandomOptions() {
  EngineHarness::Options options = EngineHarness::DefaultOptions();
  options.vocab_size = kVocab;
  options.num_kv_blocks = Draw(4, 40);
  options.max_model_len = Draw(16, 96);
  if (OneIn(3)) options.kv_window = Draw(1, 40);
  options.config.set_block_size(Draw(1, 8));
  options.config.set_max_num_seqs(Draw(1, 12));
  options.config.set_max_num_batched_tokens(Draw(1, 32));
  options.config.set_max_steps_in_flight(OneIn(3) ? 1 : 2);
  options.config.set_prefix_caching(!OneIn(3));
  options.config.set_max_prefill_chunk_tokens(OneIn(2) ? 0 : Draw(1, 8));
  options.config.set_max_waiting_requests(Draw(1, 20));
  options.config.set_max_waiting_tokens(Draw(20, 600));
  if (OneIn(3)) options.config.set_policy(internal::v1::SCHEDULING_POLICY_PRIORITY);
  if (OneIn(2)) {
    options.config.set_max_worker_restarts(1'000'000);
    options.config.set_worker_restart_window_ms(1'000'000);
  }
  return options;
}

// Few different beginnings, so that prefixes are shared; two salts.
std::vector<TokenId> RandomRun::RandomPrompt() {
  const int32_t size = Draw(1, harness_.options.max_model_len + (OneIn(8) ? 4 : 0));
  const int32_t num_shared = OneIn(2) ? size : Draw(0, size);
  const TokenId family = Draw(0, 2);
  std::vector<TokenId> prompt;
  for (int32_t i = 0; i < size; ++i) {
    prompt.push_back(i < num_shared ? (family + i) % kNumShared : Draw(0, kVocab - 1));
  }
  return prompt;
}

void RandomRun::SubmitOne() {
  Request request = harness_.NewRequest(RandomPrompt(), Draw(0, 24));
  if (OneIn(6)) request.stop.max_tokens.reset();
  for (int32_t i = Draw(0, 2); i > 0; --i)
    request.stop.eos_token_ids.push_back(Draw(0, kVocab - 1));
  for (int32_t i = Draw(0, 2); i > 0; --i)
    request.stop.stop_token_ids.push_back(Draw(0, kVocab - 1));
  request.stop.min_tokens = OneIn(4) ? Draw(0, 6) : 0;
  request.stop.ignore_eos = OneIn(5);
  request.n = OneIn(4) ? Draw(2, 4) : 1;
  request.best_of = request.n + (OneIn(8) ? Draw(1, 2) : 0);
  if (OneIn(10)) {
    request.best_of = Draw(1, 4);
    request.n = Draw(1, request.best_of);
    request.sampling.beams = BeamParams{.width = request.best_of,
                                        .length_penalty = static_cast<float>(Draw(0, 2)),
                                        .early_stopping = OneIn(2)};
  }
  request.priority = Draw(-1, 1);
  if (OneIn(2)) request.cache_salt = "other";
  if (has_tenants_) {
    const int32_t tenant = Draw(0, 2);
    request.tenant = {.name = std::to_string(tenant),
                      .weight = 1.0 + 2.0 * tenant,
                      .queue_share = OneIn(2) ? 1.0 : 0.3};
  }
  if (OneIn(6)) request.sampling.num_logprobs = Draw(0, 2);
  if (OneIn(8)) request.sampling.num_prompt_logprobs = Draw(0, 2);
  if (OneIn(2)) request.sampling.max_draft_tokens = Draw(1, 16);
  if (OneIn(10)) request.deadline_ns = harness_.clock.now_ns + Draw(-1, 60) * 1'000'000;
  const absl::Status status = harness_.Submit(request);
  if (status.ok()) {
    requests_[request.key.value()] = request;
  } else if (absl::IsInternal(status)) {
    ASSERT_FALSE(harness_.pipe.deadly_tokens.empty()) << status;
  } else {
    ASSERT_TRUE(absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status)) << status;
  }
}

// For reasons that nobody is to blame for; deadly tokens are the others.
void RandomRun::LoseWorkers() {
  using Cause = parallel::WorkerFailure::Cause;
  harness_.pipe.fault = absl::UnavailableError("lost");
  harness_.pipe.fault_cause = OneIn(2) ? Cause::kKilled : Cause::kStopped;
  harness_.pipe.num_waits_to_restart = OneIn(2) ? 0 : Draw(1, 10);
  harness_.pipe.num_failing_starts = OneIn(4) ? Draw(1, 3) : 0;
}

void RandomRun::Act() {
  // The engine waits: whoever is live must have a row in flight, or nobody will ever move.
  const FakeStepPipe& pipe = harness_.pipe;
  ASSERT_TRUE(pipe.num_in_flight() > 0 || harness_.engine->num_live_requests() == 0 ||
              !pipe.is_ready())
      << "no progress";
  CheckGauges();
  if (OneIn(3)) SubmitOne();
  if (recovers() && OneIn(100)) LoseWorkers();
  if (OneIn(25) && !requests_.empty()) {
    auto it = requests_.lower_bound(Draw(1, static_cast<int32_t>(requests_.rbegin()->first)));
    harness_.engine->Cancel(RequestKey(it->first));
    is_cancelled_[it->first] = true;
  }
}

void RandomRun::CheckGauges() {
  const EngineMetrics& m = harness_.metrics;
  ASSERT_EQ(m.kv_blocks_used.value() + m.kv_blocks_cached.value() + m.kv_blocks_free.value(),
            m.kv_blocks_total.value());
  ASSERT_LE(m.requests_running.value(), harness_.options.config.max_num_seqs());
}

void RandomRun::Run(uint64_t num_steps) {
  const bool ends_by_fault = !recovers() && OneIn(5);
  if (recovers() && OneIn(6)) harness_.pipe.deadly_tokens = {kNumShared - 2};
  if (OneIn(6)) harness_.pipe.poisonous_tokens = {kNumShared - 1};
  if (OneIn(2)) harness_.pipe.sample = SampleRepetitively;
  const absl::Status status = harness_.RunToEnd(
      [&](int) {
        if (::testing::Test::HasFatalFailure()) harness_.engine->Stop(absl::AbortedError("failed"));
        if (harness_.pipe.num_steps() < num_steps) {
          Act();
        } else if (ends_by_fault && OneIn(8)) {
          harness_.pipe.fault = absl::UnavailableError("worker is gone");
        }
      },
      static_cast<int>(num_steps) * 4 + 20000);
  ASSERT_EQ(harness_.pipe.violation(), "");
  ASSERT_EQ(harness_.sink.violation, "");
  ASSERT_TRUE(status.ok() || harness_.pipe.fault.has_value()) << status;
  ASSERT_EQ(harness_.engine->num_live_requests(), 0);
  if (!harness_.pipe.fault.has_value()) {
    ASSERT_EQ(harness_.metrics.kv_blocks_used.value(), 0);
  }
  for (const auto& [key, request] : requests_) CheckEnd(request);
  ASSERT_EQ(harness_.sink.requests.size(), requests_.size());
  uint64_t num_finished = 0;
  for (const MetricCounter& count : harness_.metrics.requests_finished)
    num_finished += count.value();
  ASSERT_EQ(num_finished, requests_.size());
}

void RandomRun::CheckEnd(const Request& request) {
  const CollectedRequest& collected = harness_.sink.requests[request.key.value()];
  ASSERT_TRUE(collected.has_ended);
  ASSERT_EQ(collected.sequences.size(), static_cast<size_t>(request.n));
  ASSERT_EQ(collected.started->num_prompt_tokens, static_cast<int32_t>(request.prompt.size()));
  ASSERT_LT(collected.started->num_cached_tokens, static_cast<int32_t>(request.prompt.size()));
  if (request.best_of > request.n || request.sampling.beams.has_value()) return;
  for (const auto& [index, sequence] : collected.sequences) {
    CheckSequence(request, index, sequence);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

void RandomRun::CheckSequence(const Request& request,
                              int32_t index,
                              const CollectedSequence& sequence) {
  const SequenceFinished& finished = *sequence.finished;
  const StopParams& stop = request.stop;
  const auto is_in = [](const std::vector<TokenId>& ids, TokenId id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  const int32_t num_prompt_tokens = static_cast<int32_t>(request.prompt.size());
  const int32_t limit = std::min(stop.max_tokens.value_or(kVocab * 1000),
                                 harness_.options.max_model_len - num_prompt_tokens);
  const std::vector<TokenId> expected = harness_.ExpectedTokens(request, index, limit);
  const int32_t num_tokens = static_cast<int32_t>(sequence.tokens.size());
  ASSERT_EQ(finished.num_completion_tokens, num_tokens);
  ASSERT_LE(num_tokens, limit);
  FinishReason reason = FinishReason::kLength;
  int32_t end = 0;
  for (; end < limit; ++end) {
    if (end + 1 <= stop.min_tokens) continue;
    if (!stop.ignore_eos && is_in(stop.eos_token_ids, expected[end])) {
      reason = FinishReason::kStop;
      break;
    }
    if (is_in(stop.stop_token_ids, expected[end])) {
      reason = FinishReason::kStopSequence;
      break;
    }
  }
  const int32_t num_expected = std::min(limit, end + 1);
  ASSERT_TRUE(std::equal(sequence.tokens.begin(), sequence.tokens.end(), expected.begin()))
      << "request " << request.key.value() << " index " << index;
  if (finished.status.ok()) {
    // The pool may end it earlier, with length.
    const bool is_cut_by_pool =
        finished.reason == FinishReason::kLength && num_tokens < num_expected;
    if (is_cut_by_pool) {
      const auto block_size = static_cast<int32_t>(harness_.options.config.block_size());
      const int32_t num_pool_tokens = harness_.options.num_kv_blocks * block_size;
      ASSERT_GT(num_prompt_tokens + num_tokens, num_pool_tokens);
      // Where the window fits, no sequence outgrows the pool.
      const int32_t window = harness_.options.kv_window;
      const int32_t num_window_blocks = (window + block_size - 1) / block_size + 1;
      ASSERT_TRUE(window == 0 || num_window_blocks > harness_.options.num_kv_blocks);
    } else {
      ASSERT_EQ(num_tokens, num_expected);
      ASSERT_EQ(finished.reason, reason);
    }
  } else {
    ASSERT_LE(num_tokens, num_expected);
    if (finished.reason == FinishReason::kCancelled) {
      ASSERT_TRUE(is_cancelled_[request.key.value()]);
      ASSERT_TRUE(absl::IsCancelled(finished.status));
    } else if (finished.reason == FinishReason::kDeadline) {
      ASSERT_TRUE(request.deadline_ns.has_value());
      ASSERT_TRUE(absl::IsDeadlineExceeded(finished.status));
    } else {
      ASSERT_EQ(finished.reason, FinishReason::kError);
      if (absl::IsInternal(finished.status)) {
        const auto is_bad = [&](TokenId id) {
          return harness_.pipe.poisonous_tokens.count(id) > 0 ||
                 harness_.pipe.deadly_tokens.count(id) > 0;
        };
        // Or one of its siblings'.
        ASSERT_TRUE(request.n > 1 ||
                    std::any_of(request.prompt.begin(), request.prompt.end(), is_bad) ||
                    std::any_of(expected.begin(), expected.end(), is_bad));
        return;
      }
      ASSERT_TRUE(absl::IsUnavailable(finished.status)) << finished.status;
      ASSERT_TRUE(harness_.pipe.fault.has_value()) << finished.status;
    }
  }
  ASSERT_EQ(sequence.logprobs.size(), request.sampling.num_logprobs.has_value() ? num_tokens : 0);
  if (index > 0 || !request.sampling.num_prompt_logprobs.has_value()) {
    ASSERT_TRUE(sequence.prompt_logprobs.empty());
  } else if (num_tokens > 0 || finished.status.ok()) {
    const std::vector<uint32_t> prompt(request.prompt.begin(), request.prompt.end());
    ASSERT_EQ(sequence.prompt_logprobs.size(), prompt.size());
    ASSERT_EQ(sequence.prompt_logprobs[0].rank, 0);
    for (size_t i = 0; i < prompt.size(); ++i) {
      ASSERT_EQ(sequence.prompt_logprobs[i].token.token, request.prompt[i]);
      if (i == 0) continue;
      ASSERT_EQ(sequence.prompt_logprobs[i].token.logprob,
                FakeStepPipe::Logprob(prompt, i, prompt[i]));
    }
  }
}

TEST(EngineRandomTest, MillionStepsFromASeed) {
#ifdef PAGODA_SANITIZED
  // Ten times as slow; a quick run has the million in its other build.
  const uint64_t kNumSteps = std::getenv("PAGODA_QUICK_TESTS") == nullptr ? 1'000'000 : 100'000;
#else
  constexpr uint64_t kNumSteps = 1'000'000;
#endif
  constexpr uint64_t kStepsPerRun = 1000;
  uint64_t num_steps = 0, num_preemptions = 0, num_hit_tokens = 0, num_requests = 0;
  uint64_t num_restarts = 0, num_quarantined = 0;
  uint64_t num_drafts = 0, num_drafts_accepted = 0, num_blocks_copied = 0;
  const char* const first_seed = std::getenv("PAGODA_FIRST_SEED");
  uint64_t seed = first_seed != nullptr ? std::strtoull(first_seed, nullptr, 10) : 1;
  for (; num_steps < kNumSteps; ++seed) {
    RandomRun run(seed);
    run.Run(kStepsPerRun);
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
    num_steps += run.num_steps();
    num_preemptions += run.num_preemptions();
    num_hit_tokens += run.num_hit_tokens();
    num_requests += run.num_requests();
    num_restarts += run.num_restarts();
    num_quarantined += run.num_quarantined();
    num_drafts += run.num_drafts();
    num_drafts_accepted += run.num_drafts_accepted();
    num_blocks_copied += run.num_blocks_copied();
  }
  // The runs did reach what they are for.
  EXPECT_GT(num_preemptions, num_steps / 1000);
  EXPECT_GT(num_hit_tokens, num_steps / 10);
  EXPECT_GT(num_requests, num_steps / 10);
  EXPECT_GT(num_restarts, num_steps / 1000);
  EXPECT_GT(num_quarantined, num_steps / 10000);
  EXPECT_GT(num_drafts_accepted, num_steps / 100);
  EXPECT_GT(num_blocks_copied, num_steps / 100);
  EXPECT_GT(num_drafts - num_drafts_accepted, num_steps / 100);
  RecordProperty("last_seed", static_cast<int>(seed - 1));
  RecordProperty("blocks_copied", static_cast<int>(num_blocks_copied));
  RecordProperty("preemptions", static_cast<int>(num_preemptions));
  RecordProperty("requests", static_cast<int>(num_requests));
}

}  // namespace
}  // namespace pagoda::engine
