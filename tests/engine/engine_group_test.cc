// Engines that take over each other's requests: each stream goes on where it was, token for token.
#include "engine/engine_group.h"

#include <memory>
#include <utility>
#include <vector>

#include "engine/sequence.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/engine_harness.h"
#include "tests/fakes/fake_tokenizer.h"

namespace pagoda::engine {
namespace {

using parallel::WorkerFailure;
using Cause = WorkerFailure::Cause;

// Gives everything to one engine.
class OnePeer final : public EnginePeers {
 public:
  void NoteLoss() override { ++num_losses; }
  bool CanTakeOver() const override { return next != nullptr && is_open; }
  void TakeOver(std::vector<std::unique_ptr<LiveRequest>>* requests) override {
    std::vector<std::unique_ptr<LiveRequest>> rest;
    for (auto& live : *requests) {
      if (next->Adopt(&live)) {
        ++num_taken;
      } else {
        rest.push_back(std::move(live));
      }
    }
    *requests = std::move(rest);
  }
  void ForwardCancel(RequestKey key) override { forwarded.push_back(key); }

  Engine* next = nullptr;
  bool is_open = true;
  int num_losses = 0;
  int num_taken = 0;
  std::vector<RequestKey> forwarded;
};

// Engines of which each gives what it loses to the next; they run one after the other, in one
// thread. All deliver to the first one's sink.
class EngineGroupTest : public testing::Test {
 protected:
  void Start(size_t num_engines, EngineHarness::Options options) {
    engines_.clear();
    peers_.clear();
    group_ = std::make_unique<EngineGroup>("test");
    options.group = group_.get();
    if (options.config.max_worker_restarts() == 0) options.config.set_max_worker_restarts(100);
    options.config.set_worker_restart_window_ms(600'000);
    for (size_t i = 0; i < num_engines; ++i) {
      peers_.push_back(std::make_unique<OnePeer>());
      options.peers = peers_.back().get();
      options.sink = i == 0 ? nullptr : &first().sink;
      engines_.push_back(std::make_unique<EngineHarness>(options));
      engines_.back()->pipe.num_waits_to_restart = 1000;
      if (i > 0) peers_[i - 1]->next = engines_.back()->engine.get();
    }
  }
  static EngineHarness::Options Defaults() { return EngineHarness::DefaultOptions(); }

  EngineHarness& first() { return *engines_.front(); }
  EngineHarness& engine(size_t i) { return *engines_[i]; }

  void Fail(size_t i, Cause cause = Cause::kKilled) {
    engine(i).pipe.fault = absl::UnavailableError("it is gone");
    engine(i).pipe.fault_cause = cause;
  }
  // Every engine but the last loses its workers at its wait number `lost_at`.
  void RunAll(int lost_at, Cause cause = Cause::kKilled) {
    for (size_t i = 0; i < engines_.size(); ++i) {
      const absl::Status status = engine(i).RunToEnd([&](int num_waits) {
        if (num_waits == lost_at && i + 1 < engines_.size()) Fail(i, cause);
      });
      ASSERT_TRUE(status.ok()) << status << ", engine " << i << " lost at " << lost_at;
      EXPECT_EQ(engine(i).metrics.kv_blocks_used.value(), 0);
      EXPECT_EQ(engine(i).engine->num_live_requests(), 0);
    }
    EXPECT_EQ(first().sink.violation, "");
  }
  void ExpectRight(const Request& request, int32_t num_tokens) {
    const int32_t num_sequences = request.best_of > request.n ? 0 : request.n;
    for (int32_t index = 0; index < num_sequences; ++index) {
      const CollectedSequence& sequence = first().Sequence(request.key, index);
      ASSERT_TRUE(sequence.finished.has_value());
      EXPECT_TRUE(sequence.finished->status.ok()) << sequence.finished->status;
      EXPECT_EQ(sequence.tokens, first().ExpectedTokens(request, index, num_tokens));
    }
  }

  std::unique_ptr<EngineGroup> group_;
  std::vector<std::unique_ptr<OnePeer>> peers_;
  std::vector<std::unique_ptr<EngineHarness>> engines_;
};

TEST_F(EngineGroupTest, AKillAtAnyStepMovesEveryStreamAndChangesNoToken) {
  for (int lost_at = 1; lost_at <= 30; ++lost_at) {
    Start(4, Defaults());
    std::vector<Request> requests;
    for (int i = 0; i < 12; ++i) {
      requests.push_back(first().NewRequest(Prompt(3 + 4 * (i % 5), i), 6 + i));
      requests.back().n = requests.back().best_of = 1 + i % 3;
      ASSERT_TRUE(first().Submit(requests.back()).ok());
    }
    RunAll(lost_at);
    for (size_t i = 0; i < requests.size(); ++i) ExpectRight(requests[i], 6 + static_cast<int>(i));
    EXPECT_EQ(first().metrics.requests_given_away.value(),
              static_cast<uint64_t>(peers_[0]->num_taken));
    EXPECT_GT(peers_[0]->num_taken, 0) << lost_at;
    EXPECT_EQ(peers_[0]->num_losses, 1);
    uint64_t num_finished = 0;
    for (const auto& each : engines_) {
      for (const MetricCounter& count : each->metrics.requests_finished)
        num_finished += count.value();
    }
    EXPECT_EQ(num_finished, requests.size());
  }
}

TEST_F(EngineGroupTest, LogprobsAndPromptLogprobsComeOnceEach) {
  for (int lost_at = 1; lost_at <= 12; ++lost_at) {
    Start(3, Defaults());
    Request request = first().NewRequest(Prompt(21), 8);
    request.sampling.num_logprobs = 1;
    request.sampling.num_prompt_logprobs = 1;
    ASSERT_TRUE(first().Submit(request).ok());
    RunAll(lost_at);
    ExpectRight(request, 8);
    const CollectedSequence& sequence = first().Sequence(request.key);
    ASSERT_EQ(sequence.logprobs.size(), 8u);
    ASSERT_EQ(sequence.prompt_logprobs.size(), 21u);
    std::vector<uint32_t> tokens(request.prompt.begin(), request.prompt.end());
    tokens.insert(tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
    for (size_t i = 1; i < 21; ++i) {
      const std::vector<uint32_t> prompt(tokens.begin(), tokens.begin() + 21);
      EXPECT_EQ(sequence.prompt_logprobs[i].token.logprob,
                FakeStepPipe::Logprob(prompt, i, tokens[i]));
    }
    for (size_t i = 21; i < tokens.size(); ++i) {
      EXPECT_EQ(sequence.logprobs[i - 21].token.logprob,
                FakeStepPipe::Logprob(tokens, i, tokens[i]));
    }
  }
}

// What a search or a choice among draws keeps on the host is as if nothing had happened.
TEST_F(EngineGroupTest, BeamsBestOfAndDraftsGoOn) {
  const auto run = [this](size_t num_engines, int lost_at) {
    Start(num_engines, Defaults());
    Request beams = first().NewRequest(Prompt(9), 14);
    beams.sampling.beams = BeamParams{.width = 3};
    beams.best_of = 3;
    beams.n = 2;
    Request best = first().NewRequest(Prompt(6, 5), 9);
    best.best_of = 4;
    best.n = 2;
    Request drafted = first().NewRequest({1, 2, 3, 1, 2, 3, 1, 2, 3}, 20);
    drafted.sampling.max_draft_tokens = 4;
    for (const Request& request : {beams, best, drafted}) EXPECT_TRUE(first().Submit(request).ok());
    RunAll(lost_at);
    ExpectRight(drafted, 20);
    std::vector<std::vector<TokenId>> tokens;
    for (const Request& request : {beams, beams, best, best}) {
      const int32_t index = static_cast<int32_t>(tokens.size()) % 2;
      tokens.push_back(first().Sequence(request.key, index).tokens);
    }
    return tokens;
  };
  const auto undisturbed = run(1, 0);
  for (int lost_at = 1; lost_at <= 20; ++lost_at) EXPECT_EQ(run(3, lost_at), undisturbed);
}

TEST_F(EngineGroupTest, StopStringsSeeNoSeam) {
  std::vector<std::string> letters;
  for (int i = 0; i < 100; ++i) letters.emplace_back(1, static_cast<char>('a' + i % 26));
  const FakeTokenizer tokenizer(letters);
  EngineHarness::Options options = Defaults();
  options.tokenizer = &tokenizer;
  const auto text_of = [&](const std::string& stop, size_t num_engines, int lost_at) {
    Start(num_engines, options);
    Request request = first().NewRequest(Prompt(9), 30);
    request.stop.stop_strings = {stop};
    EXPECT_TRUE(first().Submit(request).ok());
    RunAll(lost_at);
    return first().Sequence(request.key).text;
  };
  const std::string whole = text_of("no such text", 1, 0);
  ASSERT_EQ(whole.size(), 30u);
  const std::string stop = whole.substr(10, 3);
  const std::string undisturbed = text_of(stop, 1, 0);
  EXPECT_EQ(undisturbed, whole.substr(0, whole.find(stop)));
  for (int lost_at = 1; lost_at <= 20; ++lost_at) EXPECT_EQ(text_of(stop, 3, lost_at), undisturbed);
}

// Who came first is served first, also where he did not come first.
TEST_F(EngineGroupTest, RequestsKeepTheirPlaceInTheServiceOrder) {
  EngineHarness::Options options = Defaults();
  options.config.set_max_num_seqs(1);
  Start(2, options);
  const Request early = first().NewRequest(Prompt(5), 10);
  ASSERT_TRUE(first().Submit(early).ok());
  Request late = first().NewRequest(Prompt(5, 3), 10);
  ASSERT_TRUE(first()
                  .RunToEnd([&](int num_waits) {
                    if (num_waits == 4) Fail(0);
                    if (num_waits == 3) {
                      EXPECT_TRUE(engine(1).engine->Submit(late).ok());
                    }
                  })
                  .ok());
  std::vector<RequestKey> ends;
  first().sink.on_delta = [&](const OutputDelta& delta) {
    if (delta.last) ends.push_back(delta.key);
  };
  ASSERT_TRUE(engine(1).RunToEnd().ok());
  EXPECT_THAT(ends, ::testing::ElementsAre(early.key, late.key));
}

TEST_F(EngineGroupTest, SuspectsStayAndOthersMove) {
  EngineHarness::Options options = Defaults();
  options.config.set_max_num_seqs(4);
  Start(2, options);
  engine(0).pipe.num_waits_to_restart = 2;
  std::vector<Request> requests;
  for (int i = 0; i < 10; ++i) {
    requests.push_back(first().NewRequest(Prompt(5, i), 8));
    ASSERT_TRUE(first().Submit(requests.back()).ok());
  }
  RunAll(4, Cause::kCrashed);
  for (const Request& request : requests) ExpectRight(request, 8);
  EXPECT_EQ(peers_[0]->num_taken, 6);
  EXPECT_EQ(engine(0).pipe.num_restarts(), 1u);
}

TEST_F(EngineGroupTest, ACulpritIsRefusedByAll) {
  Start(2, Defaults());
  engine(0).pipe.num_waits_to_restart = 1;
  engine(0).pipe.deadly_tokens = {99};
  engine(0).pipe.sample = [](const std::vector<uint32_t>& tokens, uint64_t seed) {
    return FakeStepPipe::NextToken(tokens, seed, 90);
  };
  const Request culprit = first().NewRequest({1, 99, 2}, 5);
  ASSERT_TRUE(first().Submit(culprit).ok());
  ASSERT_TRUE(first().RunToEnd().ok());
  EXPECT_TRUE(absl::IsInternal(first().Sequence(culprit.key).finished->status));
  EXPECT_EQ(peers_[0]->num_taken, 0);
  EXPECT_TRUE(absl::IsInternal(engine(1).Submit(first().NewRequest({1, 99, 2}, 5))));
}

TEST_F(EngineGroupTest, AnEngineThatIsOverLosesNothing) {
  EngineHarness::Options options = Defaults();
  options.config.set_max_worker_restarts(1);
  Start(2, options);
  engine(0).pipe.num_waits_to_restart = 0;
  peers_[0]->is_open = false;
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) {
    requests.push_back(first().NewRequest(Prompt(5, i), 20));
    ASSERT_TRUE(first().Submit(requests.back()).ok());
  }
  const absl::Status status = first().RunToEnd([&](int num_waits) {
    if (num_waits == 3) Fail(0);
    if (num_waits != 12) return;
    Fail(0);
    peers_[0]->is_open = true;
  });
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(peers_[0]->num_taken, 12);
  EXPECT_FALSE(first().engine->has_workers());
  Request more = first().NewRequest(Prompt(5), 2);
  EXPECT_TRUE(absl::IsUnavailable(first().engine->TrySubmit(&more)));
  EXPECT_EQ(more.prompt, Prompt(5));  // it can go elsewhere
  ASSERT_TRUE(engine(1).engine->TrySubmit(&more).ok());
  ASSERT_TRUE(engine(1).RunToEnd().ok());
  EXPECT_EQ(first().sink.violation, "");
  for (const Request& request : requests) ExpectRight(request, 20);
}

TEST_F(EngineGroupTest, WithoutWorkersElsewhereRequestsWaitForTheirOwn) {
  Start(2, Defaults());
  engine(0).pipe.num_waits_to_restart = 3;
  peers_[0]->is_open = false;
  const Request request = first().NewRequest(Prompt(5), 20);
  ASSERT_TRUE(first().Submit(request).ok());
  bool had_workers = true;
  ASSERT_TRUE(first()
                  .RunToEnd([&](int num_waits) {
                    if (num_waits == 5) Fail(0);
                    if (num_waits == 7) had_workers = first().engine->has_workers();
                  })
                  .ok());
  EXPECT_FALSE(had_workers);
  EXPECT_EQ(peers_[0]->num_taken, 0);
  ExpectRight(request, 20);
}

TEST_F(EngineGroupTest, CancellationsFollow) {
  Start(2, Defaults());
  const Request request = first().NewRequest(Prompt(5), 20);
  ASSERT_TRUE(first().Submit(request).ok());
  ASSERT_TRUE(first()
                  .RunToEnd([&](int num_waits) {
                    if (num_waits == 5) {
                      Fail(0);
                      first().engine->Cancel(RequestKey(77));
                    }
                  })
                  .ok());
  EXPECT_THAT(peers_[0]->forwarded, ::testing::ElementsAre(RequestKey(77)));
  engine(1).engine->Cancel(request.key);
  ASSERT_TRUE(engine(1).RunToEnd().ok());
  EXPECT_EQ(first().Sequence(request.key).finished->reason, FinishReason::kCancelled);
}

}  // namespace
}  // namespace pagoda::engine
