#include "engine/step_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pagoda::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Request FullRequest() {
  Request request;
  request.key = RequestKey(1);
  request.prompt = {5, 6, 7};
  request.sampling = {.temperature = 0.5f,
                      .top_p = 0.9f,
                      .top_k = 40,
                      .min_p = 0.1f,
                      .typical_p = 0.8f,
                      .repetition_penalty = 1.1f,
                      .frequency_penalty = 0.2f,
                      .presence_penalty = 0.3f,
                      .seed = 100,
                      .logit_bias = {{3, -1.5f}},
                      .allowed_token_ids = {1, 2},
                      .bad_words = {{4, 5}, {6}},
                      .num_logprobs = 2,
                      .num_prompt_logprobs = 1,
                      .processed_logprobs = true};
  request.stop = {.min_tokens = 2, .stop_token_ids = {9, 3}, .eos_token_ids = {3, 50}};
  request.n = request.best_of = 2;
  return request;
}

TEST(StepBuilderTest, WritesANewSequence) {
  LiveRequest live(FullRequest(), 100, nullptr);
  Sequence& sequence = live.sequences[1];
  sequence.slot = SlotId(3);
  sequence.tables[0] = {BlockId(7), BlockId(2)};
  sequence.output.push_back(8);
  ScheduledStep step;
  step.id = StepId(12);
  step.released_slots = {SlotId(1)};
  step.admitted = {{.sequence = &sequence, .num_computed_tokens = 2, .copied_block = BlockId(9)}};
  step.rows = {{.sequence = &sequence, .slot = SlotId(3), .num_tokens = 2, .samples = true}};
  StepBuilder builder(50);
  const internal::v1::StepPlan& plan = builder.Build(step);
  EXPECT_EQ(plan.step_id(), 12u);
  EXPECT_THAT(plan.released_slots(), ElementsAre(1));
  EXPECT_THAT(plan.row_slots(), ElementsAre(3));
  EXPECT_THAT(plan.row_num_tokens(), ElementsAre(2));
  EXPECT_THAT(plan.row_samples(), ElementsAre(1));
  ASSERT_EQ(plan.new_sequences_size(), 1);
  const internal::v1::NewSequence& added = plan.new_sequences(0);
  EXPECT_EQ(added.slot(), 3u);
  EXPECT_THAT(added.token_ids(), ElementsAre(5, 6, 7, 8));
  EXPECT_EQ(added.num_prompt_tokens(), 3u);
  EXPECT_EQ(added.num_computed_tokens(), 2u);
  EXPECT_EQ(added.copied_block(), 9u);
  ASSERT_EQ(added.block_tables_size(), 1);
  EXPECT_THAT(added.block_tables(0).block_ids(), ElementsAre(7, 2));
  const internal::v1::RowSampling& sampling = added.sampling();
  EXPECT_EQ(sampling.seed(), 101u);
  EXPECT_EQ(sampling.top_k(), 40u);
  EXPECT_FLOAT_EQ(sampling.typical_p(), 0.8f);
  EXPECT_FLOAT_EQ(sampling.presence_penalty(), 0.3f);
  EXPECT_THAT(sampling.bias_token_ids(), ElementsAre(3));
  EXPECT_THAT(sampling.bias_values(), ElementsAre(-1.5f));
  EXPECT_THAT(sampling.allowed_token_ids(), ElementsAre(1, 2));
  ASSERT_EQ(sampling.bad_words_size(), 2);
  EXPECT_THAT(sampling.bad_words(0).token_ids(), ElementsAre(4, 5));
  // EOS and stop ids, each once, those beyond the vocabulary left out.
  EXPECT_EQ(sampling.min_tokens(), 2u);
  EXPECT_THAT(sampling.min_tokens_masked_ids(), ElementsAre(3, 9));
  EXPECT_EQ(sampling.num_logprobs(), 2u);
  // The first sequence brings the prompt's.
  EXPECT_FALSE(sampling.has_num_prompt_logprobs());
  EXPECT_TRUE(sampling.processed_logprobs());
}

TEST(StepBuilderTest, APlanHoldsOnlyWhatChanged) {
  LiveRequest live(FullRequest(), 100, nullptr);
  Sequence& sequence = live.sequences[0];
  sequence.slot = SlotId(0);
  sequence.tables[0] = {BlockId(7), BlockId(2), BlockId(5)};
  StepBuilder builder(50);
  ScheduledStep step;
  step.rows = {{.sequence = &sequence, .slot = SlotId(0), .num_tokens = 1}};
  const internal::v1::StepPlan& quiet = builder.Build(step);
  EXPECT_THAT(quiet.appended_slots(), IsEmpty());
  EXPECT_THAT(quiet.appended_blocks(), IsEmpty());
  EXPECT_EQ(quiet.new_sequences_size(), 0);
  step.growth = {{.sequence = &sequence, .group = 0, .first = 1}};
  const internal::v1::StepPlan& grown = builder.Build(step);
  EXPECT_THAT(grown.appended_slots(), ElementsAre(0));
  EXPECT_THAT(grown.appended_counts(), ElementsAre(2));
  EXPECT_THAT(grown.appended_groups(), IsEmpty());
  EXPECT_THAT(grown.appended_blocks(), ElementsAre(2, 5));
}

TEST(StepBuilderTest, PromptLogprobsAreAskedForUntilTheyAreThere) {
  LiveRequest live(FullRequest(), 100, nullptr);
  Sequence& sequence = live.sequences[0];
  sequence.slot = SlotId(0);
  ScheduledStep step;
  step.admitted = {{.sequence = &sequence}};
  StepBuilder builder(50);
  EXPECT_TRUE(builder.Build(step).new_sequences(0).sampling().has_num_prompt_logprobs());
  live.num_prompt_logprobs_known = 2;
  EXPECT_FALSE(builder.Build(step).new_sequences(0).sampling().has_num_prompt_logprobs());
}

TEST(StepBuilderTest, RankedDrawsAskForTheirOwnLogprobs) {
  Request request = FullRequest();
  request.sampling.num_logprobs.reset();
  request.best_of = 3;
  LiveRequest live(std::move(request), 100, nullptr);
  live.sequences[0].slot = SlotId(0);
  ScheduledStep step;
  step.admitted = {{.sequence = &live.sequences[0]}};
  StepBuilder builder(50);
  const internal::v1::RowSampling& sampling = builder.Build(step).new_sequences(0).sampling();
  ASSERT_TRUE(sampling.has_num_logprobs());
  EXPECT_EQ(sampling.num_logprobs(), 0u);
}

}  // namespace
}  // namespace pagoda::engine
