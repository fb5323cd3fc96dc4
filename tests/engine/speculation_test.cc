// Whole engines with sequences that are drafted: the same tokens in fewer steps.
#include <algorithm>
#include <memory>

#include <gtest/gtest.h>

#include "engine/guided/constraint.h"
#include "engine/sequence.h"
#include "tests/fakes/engine_harness.h"

namespace pagoda::engine {
namespace {

// A worker that says the same 17 tokens over and over, but for one in 40.
uint32_t Repetitive(const std::vector<uint32_t>& tokens, uint64_t seed) {
  const uint64_t size = tokens.size();
  return static_cast<uint32_t>(size % 40 == 7 ? (size + seed) % 50 : 50 + size % 17);
}

struct RepetitiveEngine {
  explicit RepetitiveEngine(EngineHarness::Options options = EngineHarness::DefaultOptions())
      : h(WithRoom(options)) {
    h.pipe.sample = Repetitive;
  }
  static EngineHarness::Options WithRoom(EngineHarness::Options options) {
    options.config.set_max_num_batched_tokens(32);
    return options;
  }
  Request New(int32_t max_tokens, int32_t max_draft_tokens) {
    Request request = h.NewRequest({1, 2, 3}, max_tokens);
    request.sampling.max_draft_tokens = max_draft_tokens;
    return request;
  }
  EngineHarness h;
};

TEST(SpeculationTest, GivesTheSameTokensInFewerSteps) {
  for (const uint32_t steps_in_flight : {1u, 2u}) {
    EngineHarness::Options options = EngineHarness::DefaultOptions();
    options.config.set_max_steps_in_flight(steps_in_flight);
    RepetitiveEngine plain(options), drafted(options);
    const Request without = plain.New(200, 0), with = drafted.New(200, 8);
    ASSERT_TRUE(plain.h.Submit(without).ok() && drafted.h.Submit(with).ok());
    ASSERT_TRUE(plain.h.RunToEnd().ok());
    ASSERT_TRUE(drafted.h.RunToEnd().ok());
    EXPECT_EQ(drafted.h.Sequence(with.key).tokens, plain.h.Sequence(without.key).tokens);
    EXPECT_EQ(drafted.h.Sequence(with.key).tokens.size(), 200u);
    EXPECT_LT(drafted.h.pipe.num_steps() * 2, plain.h.pipe.num_steps());
    const EngineMetrics& m = drafted.h.metrics;
    EXPECT_EQ(m.spec_draft_tokens.value(), drafted.h.pipe.num_drafts());
    EXPECT_EQ(m.spec_accepted_tokens.value(), drafted.h.pipe.num_drafts_accepted());
    EXPECT_GT(m.spec_drafts.value(), 0u);
    EXPECT_GT(m.spec_accepted_tokens.value() * 2, m.spec_draft_tokens.value());
    EXPECT_EQ(m.generation_tokens.value(), 200u);
    EXPECT_EQ(m.kv_blocks_used.value(), 0);
    EXPECT_EQ(plain.h.metrics.spec_drafts.value(), 0u);
  }
}

TEST(SpeculationTest, BesideOthersAndUnderPreemption) {
  EngineHarness::Options options = EngineHarness::DefaultOptions();
  options.num_kv_blocks = 24;
  RepetitiveEngine run(options);
  std::vector<Request> requests;
  for (int32_t i = 0; i < 12; ++i) {
    requests.push_back(run.New(60, i % 3 == 0 ? 0 : 4 * (i % 3)));
    requests.back().prompt.push_back(i);
    requests.back().n = requests.back().best_of = 1 + i % 2;
    ASSERT_TRUE(run.h.Submit(requests.back()).ok());
  }
  ASSERT_TRUE(run.h.RunToEnd().ok());
  EXPECT_GT(run.h.metrics.preemptions.value(), 0u);
  EXPECT_GT(run.h.metrics.spec_accepted_tokens.value(), 0u);
  for (const Request& request : requests) {
    for (int32_t i = 0; i < request.n; ++i) {
      EXPECT_EQ(run.h.Sequence(request.key, i).tokens, run.h.ExpectedTokens(request, i, 60));
    }
  }
  EXPECT_EQ(run.h.metrics.kv_blocks_used.value(), 0);
}

// B042, several tokens a step: exactly to the context.
TEST(SpeculationTest, B042_EndsExactlyAtTheContext) {
  EngineHarness::Options options = EngineHarness::DefaultOptions();
  options.max_model_len = 100;
  RepetitiveEngine run(options);
  Request request = run.New(0, 16);
  request.stop.max_tokens.reset();
  ASSERT_TRUE(run.h.Submit(request).ok());
  ASSERT_TRUE(run.h.RunToEnd().ok());
  EXPECT_EQ(run.h.Sequence(request.key).tokens, run.h.ExpectedTokens(request, 0, 97));
  EXPECT_EQ(run.h.Sequence(request.key).finished->reason, FinishReason::kLength);
}

TEST(SpeculationTest, StopsInTheMiddleOfADraft) {
  RepetitiveEngine run;
  Request request = run.New(200, 8);
  const std::vector<TokenId> all = run.h.ExpectedTokens(request, 0, 200);
  // Of the third round: by then its step has a draft before and after it.
  request.stop.stop_token_ids = {all[45]};
  request.stop.min_tokens = 40;
  ASSERT_TRUE(run.h.Submit(request).ok());
  ASSERT_TRUE(run.h.RunToEnd().ok());
  const CollectedSequence& sequence = run.h.Sequence(request.key);
  ASSERT_LE(sequence.tokens.size(), 46u);
  EXPECT_EQ(sequence.tokens.back(), all[45]);
  EXPECT_TRUE(std::equal(sequence.tokens.begin(), sequence.tokens.end(), all.begin()));
  EXPECT_EQ(sequence.finished->reason, FinishReason::kStopSequence);
  EXPECT_EQ(run.h.metrics.kv_blocks_used.value(), 0);
}

TEST(SpeculationTest, AConstraintIsNotDrafted) {
  Request request;
  request.prompt = {1, 1, 1, 1};
  LiveRequest plain(request, 100, nullptr);
  EXPECT_EQ(plain.sequences[0].drafter, nullptr);
  request.sampling.max_draft_tokens = 4;
  LiveRequest drafted(request, 100, nullptr);
  EXPECT_NE(drafted.sequences[0].drafter, nullptr);
  request.sampling.constraint = std::make_shared<const guided::CompiledConstraint>();
  LiveRequest constrained(request, 100, nullptr);
  EXPECT_EQ(constrained.sequences[0].drafter, nullptr);
}

}  // namespace
}  // namespace pagoda::engine
