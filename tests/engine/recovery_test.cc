// Losses of workers under the whole engine: streams see a pause and nothing else.
#include "engine/recovery.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/engine_harness.h"
#include "tests/fakes/fake_tokenizer.h"

namespace pagoda::engine {
namespace {

using parallel::WorkerFailure;
using Cause = WorkerFailure::Cause;

// Of tokens below 90.
std::vector<TokenId> OrdinaryPrompt(int32_t size, TokenId first = 1) {
  std::vector<TokenId> prompt;
  for (int32_t i = 0; i < size; ++i) prompt.push_back((first + i * 7) % 90);
  return prompt;
}

// Token 95 and above are in no prompt.
constexpr TokenId kDeadly = 95;

EngineHarness::Options RestartingOptions(uint32_t max_restarts = 100) {
  EngineHarness::Options options = EngineHarness::DefaultOptions();
  options.config.set_max_worker_restarts(max_restarts);
  options.config.set_worker_restart_window_ms(600'000);
  return options;
}

class RecoveryTest : public testing::Test {
 protected:
  void Start(const EngineHarness::Options& options) {
    h_ = std::make_unique<EngineHarness>(options);
    // Only what a test puts there is deadly.
    h_->pipe.sample = [](const std::vector<uint32_t>& tokens, uint64_t seed) {
      return FakeStepPipe::NextToken(tokens, seed, 90);
    };
  }
  Request Submit(std::vector<TokenId> prompt, int32_t max_tokens) {
    requests_.push_back(h_->NewRequest(std::move(prompt), max_tokens));
    EXPECT_TRUE(h_->Submit(requests_.back()).ok());
    return requests_.back();
  }
  void Fail(Cause cause) {
    h_->pipe.fault = absl::UnavailableError("it is gone");
    h_->pipe.fault_cause = cause;
  }
  std::vector<TokenId> Expected(const Request& request, int32_t num_tokens) const {
    std::vector<uint32_t> tokens(request.prompt.begin(), request.prompt.end());
    for (int32_t i = 0; i < num_tokens; ++i) {
      tokens.push_back(FakeStepPipe::NextToken(tokens, request.sampling.seed, 90));
    }
    return {tokens.begin() + static_cast<int64_t>(request.prompt.size()), tokens.end()};
  }
  void ExpectAllRight() {
    for (const Request& request : requests_) {
      const CollectedSequence& sequence = h_->Sequence(request.key);
      EXPECT_TRUE(sequence.finished->status.ok()) << sequence.finished->status;
      EXPECT_EQ(sequence.tokens, Expected(request, *request.stop.max_tokens));
    }
  }

  std::unique_ptr<EngineHarness> h_;
  std::vector<Request> requests_;
};

TEST_F(RecoveryTest, AKillAtAnyStepChangesNoToken) {
  for (int at = 1; at <= 30; ++at) {
    for (const int num_waits_to_restart : {0, 1, 5}) {
      Start(RestartingOptions());
      requests_.clear();
      h_->pipe.num_waits_to_restart = num_waits_to_restart;
      for (int i = 0; i < 5; ++i) Submit(OrdinaryPrompt(3 + 4 * i, i), 6 + i);
      ASSERT_TRUE(h_->RunToEnd([&](int num_waits) {
                      if (num_waits == at) Fail(Cause::kKilled);
                    }).ok());
      ExpectAllRight();
      EXPECT_LE(h_->pipe.num_restarts(), 1u);
      EXPECT_EQ(h_->metrics.kv_blocks_used.value(), 0);
    }
  }
}

TEST_F(RecoveryTest, LogprobsAndPromptLogprobsComeOnceEach) {
  for (int at = 1; at <= 20; ++at) {
    Start(RestartingOptions());
    Request request = h_->NewRequest(OrdinaryPrompt(21), 8);
    request.sampling.num_logprobs = 1;
    request.sampling.num_prompt_logprobs = 1;
    ASSERT_TRUE(h_->Submit(request).ok());
    ASSERT_TRUE(h_->RunToEnd([&](int num_waits) {
                    if (num_waits % at == 0 && h_->pipe.num_restarts() < 4) Fail(Cause::kKilled);
                  }).ok());
    const CollectedSequence& sequence = h_->Sequence(request.key);
    const std::vector<TokenId> expected = Expected(request, 8);
    ASSERT_EQ(sequence.tokens, expected);
    ASSERT_EQ(sequence.logprobs.size(), 8u);
    ASSERT_EQ(sequence.prompt_logprobs.size(), 21u);
    std::vector<uint32_t> tokens(request.prompt.begin(), request.prompt.end());
    for (size_t i = 1; i < 21; ++i) {
      EXPECT_EQ(sequence.prompt_logprobs[i].token.logprob,
                FakeStepPipe::Logprob(tokens, i, tokens[i]));
    }
    tokens.insert(tokens.end(), expected.begin(), expected.end());
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(sequence.logprobs[i].token.logprob,
                FakeStepPipe::Logprob(tokens, 21 + i, tokens[21 + i]));
    }
  }
}

TEST_F(RecoveryTest, SeveralSequencesOfARequestGoOn) {
  for (int at = 1; at <= 15; ++at) {
    Start(RestartingOptions());
    Request request = h_->NewRequest(OrdinaryPrompt(10), 7);
    request.n = request.best_of = 3;
    ASSERT_TRUE(h_->Submit(request).ok());
    ASSERT_TRUE(h_->RunToEnd([&](int num_waits) {
                    if (num_waits == at) Fail(Cause::kCrashed);
                  }).ok());
    for (int i = 0; i < 3; ++i) {
      Request one = request;
      one.sampling.seed += static_cast<uint64_t>(i);
      EXPECT_EQ(h_->Sequence(request.key, i).tokens, Expected(one, 7)) << at;
    }
  }
}

// A stop string that a loss falls in the middle of.
TEST_F(RecoveryTest, StopStringsSeeNoSeam) {
  std::vector<std::string> letters;
  for (int i = 0; i < 100; ++i) letters.emplace_back(1, static_cast<char>('a' + i % 26));
  const FakeTokenizer tokenizer(letters);
  EngineHarness::Options options = RestartingOptions();
  options.tokenizer = &tokenizer;
  const auto text_of = [&](const std::string& stop, int lost_at) {
    Start(options);
    Request request = h_->NewRequest(OrdinaryPrompt(9), 30);
    request.stop.stop_strings = {stop};
    EXPECT_TRUE(h_->Submit(request).ok());
    EXPECT_TRUE(h_->RunToEnd([&](int num_waits) {
                    if (num_waits == lost_at) Fail(Cause::kKilled);
                  }).ok());
    return h_->Sequence(request.key).text;
  };
  const std::string whole = text_of("no such text", 0);
  ASSERT_EQ(whole.size(), 30u);
  const std::string stop = whole.substr(10, 3);
  const std::string undisturbed = text_of(stop, 0);
  EXPECT_EQ(undisturbed, whole.substr(0, whole.find(stop)));
  for (int lost_at = 1; lost_at <= 20; ++lost_at) {
    EXPECT_EQ(text_of(stop, lost_at), undisturbed) << lost_at;
  }
}

TEST_F(RecoveryTest, CachedBlocksOfDeadWorkersAreNotFound) {
  Start(RestartingOptions());
  const Request first = Submit(OrdinaryPrompt(17), 3);
  ASSERT_TRUE(h_->RunToEnd([&](int) {
                  if (h_->engine->num_live_requests() > 0) return;
                  if (requests_.size() == 1) {
                    Fail(Cause::kKilled);
                    Submit(OrdinaryPrompt(17), 3);
                  }
                }).ok());
  ExpectAllRight();
  EXPECT_EQ(h_->sink.requests[2].started->num_cached_tokens, 0);
}

TEST_F(RecoveryTest, AnIdleLossIsMadeGood) {
  Start(RestartingOptions());
  Submit(OrdinaryPrompt(5), 3);
  ASSERT_TRUE(h_->RunToEnd([&](int num_waits) {
                  if (h_->engine->num_live_requests() == 0 && requests_.size() < 4) {
                    Fail(Cause::kKilled);
                    Submit(OrdinaryPrompt(5, num_waits), 3);
                  }
                }).ok());
  ExpectAllRight();
  EXPECT_EQ(h_->pipe.num_restarts(), 3u);
  EXPECT_EQ(h_->metrics.worker_restarts[static_cast<size_t>(Cause::kKilled)].value(), 3u);
}

TEST_F(RecoveryTest, CancelsAndDeadlinesAreKeptMeanwhile) {
  Start(RestartingOptions());
  h_->pipe.num_waits_to_restart = 50;
  const Request cancelled = Submit(OrdinaryPrompt(5), 30);
  Request late = h_->NewRequest(OrdinaryPrompt(5, 3), 30);
  late.deadline_ns = h_->clock.now_ns + 20'000'000;
  ASSERT_TRUE(h_->Submit(late).ok());
  int64_t cancelled_at_ns = 0;
  h_->sink.on_delta = [&](const OutputDelta& delta) {
    if (delta.key == cancelled.key && delta.last) cancelled_at_ns = h_->clock.now_ns;
  };
  int64_t asked_at_ns = 0;
  ASSERT_TRUE(h_->RunToEnd([&](int num_waits) {
                  if (num_waits == 5) Fail(Cause::kKilled);
                  if (num_waits != 8) return;
                  asked_at_ns = h_->clock.now_ns;
                  h_->engine->Cancel(cancelled.key);
                }).ok());
  EXPECT_EQ(h_->Sequence(cancelled.key).finished->reason, FinishReason::kCancelled);
  EXPECT_EQ(cancelled_at_ns, asked_at_ns);
  EXPECT_EQ(h_->Sequence(late.key).finished->reason, FinishReason::kDeadline);
  EXPECT_LT(h_->Sequence(late.key).finished->total_ns, 25'000'000);
}

TEST_F(RecoveryTest, StartsThatFailAreTriedAgain) {
  Start(RestartingOptions());
  Submit(OrdinaryPrompt(5), 10);
  ASSERT_TRUE(h_->RunToEnd([&](int num_waits) {
                  if (num_waits != 4) return;
                  h_->pipe.num_failing_starts = 3;
                  Fail(Cause::kKilled);
                }).ok());
  ExpectAllRight();
  EXPECT_EQ(h_->pipe.num_restarts(), 4u);
  EXPECT_EQ(h_->metrics.worker_restarts[static_cast<size_t>(Cause::kStart)].value(), 3u);
}

TEST_F(RecoveryTest, TooManyLossesEndTheEngine) {
  Start(RestartingOptions(5));
  const Request request = Submit(OrdinaryPrompt(5), 100);
  const absl::Status status = h_->RunToEnd([&](int num_waits) {
    if (num_waits % 4 == 0) Fail(Cause::kKilled);
  });
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("workers were lost more than 5 times in 600 s: it is gone"));
  EXPECT_EQ(h_->pipe.num_restarts(), 5u);
  EXPECT_TRUE(absl::IsUnavailable(h_->Sequence(request.key).finished->status));
  // What had been given stays right.
  const std::vector<TokenId>& tokens = h_->Sequence(request.key).tokens;
  const std::vector<TokenId> expected = Expected(request, 100);
  EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin()));
}

TEST_F(RecoveryTest, AWindowLaterItMayFailAgain) {
  Start(RestartingOptions(2));
  Submit(OrdinaryPrompt(5), 100);
  ASSERT_TRUE(h_->RunToEnd([&](int num_waits) {
                  if (num_waits % 4 != 0 || h_->pipe.num_restarts() == 10) return;
                  h_->clock.now_ns += 300'000'000'000;
                  Fail(Cause::kKilled);
                }).ok());
  ExpectAllRight();
}

TEST_F(RecoveryTest, WithoutRestartsTheFirstLossEndsTheEngine) {
  Start(RestartingOptions(0));
  const Request request = Submit(OrdinaryPrompt(5), 100);
  const absl::Status status = h_->RunToEnd([&](int num_waits) {
    if (num_waits == 4) Fail(Cause::kKilled);
  });
  EXPECT_EQ(status, absl::UnavailableError("it is gone"));
  EXPECT_TRUE(absl::IsUnavailable(h_->Sequence(request.key).finished->status));
}

// ---- Culprits

TEST_F(RecoveryTest, ARequestThatKillsItsWorkersIsFoundAndTheOthersGoOn) {
  for (int num_others = 0; num_others <= 7; ++num_others) {
    for (int position = 0; position <= num_others; position += 3) {
      EngineHarness::Options options = RestartingOptions();
      options.config.set_max_num_batched_tokens(64);
      Start(options);
      requests_.clear();
      h_->pipe.deadly_tokens = {kDeadly};
      std::vector<TokenId> prompt = OrdinaryPrompt(9);
      prompt[4] = kDeadly;
      const auto submit_culprit = [&] {
        Request culprit = h_->NewRequest(prompt, 10);
        EXPECT_TRUE(h_->Submit(culprit).ok());
        return culprit;
      };
      Request culprit;
      for (int i = 0; i < num_others; ++i) {
        if (i == position) culprit = submit_culprit();
        Submit(OrdinaryPrompt(5 + i, i), 20);
      }
      if (num_others == position) culprit = submit_culprit();
      ASSERT_TRUE(h_->RunToEnd().ok());
      ExpectAllRight();
      const SequenceFinished& finished = *h_->Sequence(culprit.key).finished;
      EXPECT_TRUE(absl::IsInternal(finished.status)) << finished.status;
      EXPECT_TRUE(h_->Sequence(culprit.key).tokens.empty());
      EXPECT_LE(h_->pipe.num_restarts(), 6u);
      EXPECT_EQ(h_->metrics.quarantined_requests.value(), 1u);
      // Not taken again, for a while.
      EXPECT_TRUE(absl::IsInternal(h_->Submit(h_->NewRequest(prompt, 1))));
      h_->clock.now_ns += Quarantine::kDurationNs;
      EXPECT_FALSE(absl::IsInternal(h_->Submit(h_->NewRequest(prompt, 1))));
    }
  }
}

TEST_F(RecoveryTest, CulpritsThatWereFoundDoNotUseUpTheRestarts) {
  EngineHarness::Options options = RestartingOptions(6);
  options.config.set_max_num_batched_tokens(64);
  Start(options);
  h_->pipe.deadly_tokens = {kDeadly};
  for (int i = 0; i < 4; ++i) Submit(OrdinaryPrompt(5 + i, i), 200);
  int num_culprits = 0;
  ASSERT_TRUE(h_->RunToEnd([&](int num_waits) {
                  // One at a time.
                  const bool is_due = num_waits % 30 == 0 && h_->engine->num_live_requests() == 4;
                  if (!is_due || num_culprits == 5) return;
                  ++num_culprits;
                  ASSERT_TRUE(h_->Submit(h_->NewRequest({num_culprits, kDeadly}, 3)).ok());
                }).ok());
  ExpectAllRight();
  EXPECT_EQ(h_->metrics.quarantined_requests.value(), 5u);
  EXPECT_GT(h_->pipe.num_restarts(), 6u);
}

// A device at which everything fails is not everybody's fault.
TEST_F(RecoveryTest, WorkersThatFailAtEverythingEndTheEngine) {
  Start(RestartingOptions(6));
  for (int i = 0; i < 20; ++i) Submit(OrdinaryPrompt(5 + i, i), 20);
  h_->pipe.deadly_tokens.clear();
  for (uint32_t id = 0; id < 100; ++id) h_->pipe.deadly_tokens.insert(id);
  EXPECT_TRUE(absl::IsUnavailable(h_->RunToEnd()));
  EXPECT_EQ(h_->pipe.num_restarts(), 6u);
}

TEST_F(RecoveryTest, RequestsThatComeDuringASearchWaitForItsEnd) {
  EngineHarness::Options options = RestartingOptions();
  options.config.set_max_num_batched_tokens(64);
  Start(options);
  h_->pipe.num_waits_to_restart = 3;
  for (int i = 0; i < 6; ++i) Submit(OrdinaryPrompt(5 + i, i), 20);
  ASSERT_TRUE(h_->RunToEnd([&](int num_waits) {
                  if (num_waits == 5) Fail(Cause::kStuck);
                  if (num_waits == 7) Submit(OrdinaryPrompt(11, 5), 4);
                }).ok());
  ExpectAllRight();
  EXPECT_EQ(h_->metrics.quarantined_requests.value(), 0u);
}

TEST_F(RecoveryTest, AResultThatDoesNotAnswerItsPlanIsAFailureOfTheWorkers) {
  class LyingPipe : public FakeStepPipe {
   public:
    using FakeStepPipe::FakeStepPipe;
    absl::StatusOr<bool> Poll(internal::v1::StepResult* result) override {
      absl::StatusOr<bool> polled = FakeStepPipe::Poll(result);
      if (polled.ok() && *polled && ++num_results == 3) result->add_token_ids(1);
      return polled;
    }
    int num_results = 0;
  };
  Start(RestartingOptions());
  LyingPipe pipe(FakeStepPipe::Options{});
  pipe.sample = h_->pipe.sample;
  Engine engine({.config = h_->options.config,
                 .max_model_len = 64,
                 .vocab_size = 100,
                 .num_kv_blocks = 64,
                 .pipe = &pipe,
                 .sink = &h_->sink,
                 .metrics = &h_->metrics});
  const Request request = h_->NewRequest(OrdinaryPrompt(3), 5);
  ASSERT_TRUE(engine.Submit(request).ok());
  pipe.on_wait = [&] {
    if (engine.num_live_requests() == 0) engine.Stop(absl::UnavailableError("test has ended"));
  };
  EXPECT_TRUE(engine.Run().ok());
  EXPECT_EQ(pipe.num_restarts(), 1u);
  EXPECT_EQ(h_->Sequence(request.key).tokens, h_->ExpectedTokens(request, 0, 5));
}

}  // namespace
}  // namespace pagoda::engine
