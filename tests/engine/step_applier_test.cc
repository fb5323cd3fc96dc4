#include "engine/step_applier.h"

#include <memory>

#include <gtest/gtest.h>

#include "tests/fakes/fake_tokenizer.h"

namespace pagoda::engine {
namespace {

// One request through a scheduler; results are written by hand.
class StepApplierTest : public ::testing::Test {
 protected:
  StepApplierTest()
      : pool_(16, 4),
        blocks_({.block_size = 4}, &pool_, &hasher_),
        scheduler_({.max_num_seqs = 4, .max_num_batched_tokens = 16}, &blocks_),
        outputs_(&metrics_),
        applier_(&scheduler_, &blocks_, &outputs_, &metrics_) {}

  Sequence* Add(StopParams stop, SamplingParams sampling = {}) {
    Request request;
    request.key = RequestKey(live_.size() + 1);
    request.prompt = prompt_;
    request.stop = std::move(stop);
    request.sampling = sampling;
    live_.push_back(std::make_unique<LiveRequest>(std::move(request), 100, &tokenizer_));
    Sequence* const sequence = &live_.back()->sequences[0];
    sequence->order.arrival = live_.size();
    scheduler_.Enqueue(sequence);
    return sequence;
  }

  internal::v1::StepResult Plan() {
    scheduler_.Schedule(&step_);
    step_.id = StepId(++num_steps_);
    internal::v1::StepResult result;
    result.set_step_id(num_steps_);
    return result;
  }

  absl::Status Apply(const internal::v1::StepResult& result) {
    return applier_.Apply(step_, result, 1000);
  }

  // A request that says again what its prompt says, up to where it has a draft of what follows.
  Sequence* AddRepetitive(StopParams stop, SamplingParams sampling = {}) {
    prompt_ = {5, 4, 1, 2, 5, 4, 1};
    sampling.max_draft_tokens = 8;
    Sequence* const sequence = Add(std::move(stop), sampling);
    internal::v1::StepResult result = Plan();
    AddTokens({2}, sampling.num_logprobs.has_value(), &result);
    EXPECT_TRUE(Apply(result).ok());
    return sequence;
  }

  static void AddTokens(std::vector<uint32_t> tokens,
                        bool with_logprobs,
                        internal::v1::StepResult* result) {
    result->add_sampled_slots(0);
    result->add_num_tokens(static_cast<uint32_t>(tokens.size()));
    for (const uint32_t token : tokens) {
      result->add_token_ids(token);
      if (!with_logprobs) continue;
      internal::v1::TokenLogprobs* const logprobs = result->add_logprobs();
      logprobs->set_slot(0);
      logprobs->set_logprob(-1.0f);
    }
  }

  std::vector<TokenId> prompt_ = {1, 2, 3};
  const BlockHasher hasher_{"test"};
  const FakeTokenizer tokenizer_{{"zero", "one", "two", "three", "stop", "five"}};
  EngineMetrics metrics_;
  BlockPool pool_;
  SequenceBlocks blocks_;
  Scheduler scheduler_;
  OutputBatch outputs_;
  StepApplier applier_;
  std::vector<std::unique_ptr<LiveRequest>> live_;
  ScheduledStep step_;
  uint64_t num_steps_ = 0;
};

// B012: a step may give several tokens; those whose text begins after the stop string are nowhere.
TEST_F(StepApplierTest, B012_TokensAfterTheMatchAreDropped) {
  SamplingParams sampling;
  sampling.num_logprobs = 0;
  Sequence* const sequence = AddRepetitive({.stop_strings = {"top"}}, sampling);
  internal::v1::StepResult result = Plan();
  ASSERT_EQ(step_.rows.size(), 1u);
  EXPECT_EQ(step_.rows[0].num_drafts, 4);
  EXPECT_EQ(step_.rows[0].num_tokens, 5);
  AddTokens({5, 4, 1, 2}, true, &result);
  ASSERT_TRUE(Apply(result).ok());
  const std::vector<OutputDelta> deltas = outputs_.Take();
  ASSERT_EQ(deltas.size(), 2u);
  EXPECT_EQ(deltas[1].text, "fives");
  EXPECT_EQ(deltas[1].tokens, (absl::InlinedVector<TokenId, 4>{5, 4}));
  EXPECT_EQ(deltas[1].logprobs.size(), 2u);
  EXPECT_EQ(deltas[1].finished->num_completion_tokens, 3);
  EXPECT_TRUE(deltas[1].last);
  EXPECT_EQ(sequence->state, SequenceState::kEnded);
  EXPECT_EQ(metrics_.generation_tokens.value(), 3u);
  EXPECT_EQ(metrics_.spec_drafts.value(), 1u);
  EXPECT_EQ(metrics_.spec_draft_tokens.value(), 4u);
  EXPECT_EQ(metrics_.spec_accepted_tokens.value(), 3u);
  EXPECT_EQ(pool_.num_used(), 0u);
}

// B042: several tokens in a step do not pass the limit.
TEST_F(StepApplierTest, B042_SeveralTokensStopAtTheLimit) {
  Sequence* const sequence = AddRepetitive({.max_tokens = 3});
  internal::v1::StepResult result = Plan();
  ASSERT_EQ(step_.rows.size(), 1u);
  // Two more may come: one drafted, one sampled after it.
  EXPECT_EQ(step_.rows[0].num_drafts, 1);
  AddTokens({5, 4}, false, &result);
  ASSERT_TRUE(Apply(result).ok());
  EXPECT_EQ(sequence->output.size(), 3u);
  EXPECT_EQ(outputs_.Take().back().finished->reason, FinishReason::kLength);
}

TEST_F(StepApplierTest, ADraftCountsAsFarAsItIsRight) {
  Sequence* const sequence = AddRepetitive({});
  internal::v1::StepResult result = Plan();
  ASSERT_EQ(step_.rows[0].num_drafts, 4);
  // Nothing more is planned before the result is here.
  ScheduledStep next;
  scheduler_.Schedule(&next);
  EXPECT_TRUE(next.empty());
  AddTokens({5, 4, 3}, false, &result);
  ASSERT_TRUE(Apply(result).ok());
  EXPECT_EQ(sequence->num_known_tokens, 11);
  EXPECT_EQ(sequence->num_computed, 10);
  EXPECT_EQ(sequence->num_confirmed, 10);
  EXPECT_EQ(sequence->num_samples_in_flight, 0);
  // Without a draft it is planned ahead again.
  Plan();
  ASSERT_EQ(step_.rows.size(), 1u);
  EXPECT_EQ(step_.rows[0].num_drafts, 0);
  EXPECT_EQ(step_.rows[0].num_tokens, 1);
  scheduler_.Schedule(&next);
  EXPECT_EQ(next.rows.size(), 1u);
}

TEST_F(StepApplierTest, RefusesMoreTokensThanWereDrafted) {
  AddRepetitive({});
  internal::v1::StepResult result = Plan();
  AddTokens({5, 4, 1, 2, 5, 4}, false, &result);
  EXPECT_FALSE(Apply(result).ok());
}

TEST_F(StepApplierTest, RefusesResultsThatDoNotAnswerThePlan) {
  Add({});
  const internal::v1::StepResult empty = Plan();
  internal::v1::StepResult good = empty;
  good.add_sampled_slots(0);
  good.add_token_ids(1);

  internal::v1::StepResult bad = good;
  bad.set_step_id(7);
  EXPECT_EQ(Apply(bad).message(), "result of step 1: step_id is 7, expected 1");
  EXPECT_TRUE(absl::IsInternal(Apply(empty)));
  bad = good;
  bad.add_token_ids(2);
  EXPECT_EQ(Apply(bad).message(), "result of step 1: size of token_ids is 2, expected 1");
  bad = good;
  bad.add_num_tokens(1);
  bad.add_num_tokens(1);
  EXPECT_TRUE(absl::IsInternal(Apply(bad)));
  bad = good;
  bad.add_sampled_slots(1);
  bad.add_token_ids(2);
  EXPECT_TRUE(absl::IsInternal(Apply(bad)));
  bad = good;
  bad.set_sampled_slots(0, 3);
  EXPECT_EQ(Apply(bad).message(), "result of step 1: sampled slot is 3, expected 0");
}

TEST_F(StepApplierTest, AFailedSlotMayHaveASampleOrNone) {
  for (const bool has_sample : {true, false}) {
    Add({});
    Add({});
    internal::v1::StepResult result = Plan();
    ASSERT_EQ(step_.rows.size(), 2u);
    const uint32_t bad = step_.rows[0].slot.value(), good = step_.rows[1].slot.value();
    result.add_failed_slots(bad);
    if (has_sample) {
      result.add_sampled_slots(bad);
      result.add_token_ids(1);
    }
    result.add_sampled_slots(good);
    result.add_token_ids(2);
    ASSERT_TRUE(Apply(result).ok());
    const std::vector<OutputDelta> deltas = outputs_.Take();
    ASSERT_EQ(deltas.size(), 2u);
    EXPECT_TRUE(absl::IsInternal(deltas[0].finished->status));
    EXPECT_TRUE(deltas[0].tokens.empty());
    EXPECT_EQ(deltas[1].tokens.size(), 1u);
    applier_.Abort(live_.back().get(), FinishReason::kCancelled, absl::CancelledError("x"), 1);
    outputs_.Take();
  }
}

TEST_F(StepApplierTest, SamplesOfEndedSequencesAreDiscarded) {
  Sequence* const sequence = Add({});
  internal::v1::StepResult result = Plan();
  applier_.Abort(live_[0].get(), FinishReason::kCancelled, absl::CancelledError("x"), 500);
  EXPECT_EQ(pool_.num_used(), 1u);
  EXPECT_EQ(outputs_.Take().size(), 1u);
  result.add_sampled_slots(0);
  result.add_token_ids(1);
  ASSERT_TRUE(Apply(result).ok());
  EXPECT_TRUE(outputs_.empty());
  EXPECT_TRUE(sequence->output.empty());
  EXPECT_EQ(pool_.num_used(), 0u);
}

}  // namespace
}  // namespace pagoda::engine
