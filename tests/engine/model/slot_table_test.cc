#include "engine/model/slot_table.h"

#include <string>

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

namespace pagoda::engine {
namespace {

using internal::v1::StepPlan;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr StepLimits kLimits = {.num_slots = 4,
                                .max_step_tokens = 16,
                                .max_model_len = 32,
                                .vocab_size = 100,
                                .block_size = 4,
                                .num_blocks = 10};

StepPlan Plan(const std::string& text) {
  StepPlan plan;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &plan)) << text;
  return plan;
}

// Slot 2 with tokens 5, 6, 7, 8, 9 in blocks 3 and 1.
constexpr char kStart[] = R"(
  new_sequences { slot: 2 token_ids: [5, 6, 7, 8, 9] num_prompt_tokens: 5
                  block_tables { block_ids: [3, 1] } })";

std::string With(const char* text) { return std::string(kStart) + text; }

TEST(SlotTableTest, ChunksDecodesAndGrows) {
  SlotTable table(kLimits);
  auto rows = table.Apply(Plan(With("step_id: 1 row_slots: 2 row_num_tokens: 3 row_samples: 0")));
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 1u);
  EXPECT_EQ((*rows)[0].first_position, 0);
  EXPECT_EQ((*rows)[0].num_tokens, 3);
  EXPECT_FALSE((*rows)[0].samples);

  rows = table.Apply(Plan("step_id: 2 row_slots: 2 row_num_tokens: 2 row_samples: 1"));
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)[0].first_position, 3);
  EXPECT_TRUE((*rows)[0].samples);
  // The sampled token counts before its value is known.
  EXPECT_EQ(table.slot(2).num_tokens, 6);
  EXPECT_EQ(table.slot(2).tokens.size(), 5u);

  rows = table.Apply(Plan("step_id: 3 row_slots: 2 row_num_tokens: 1 row_samples: 1"));
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)[0].first_position, 5);
  table.AppendKnownToken(2, table.slot(2).generation, 42);
  EXPECT_THAT(table.slot(2).tokens, ElementsAre(5, 6, 7, 8, 9, 42));

  rows =
      table.Apply(Plan("step_id: 4 appended_slots: 2 appended_counts: 2 appended_blocks: [7, 0]"));
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_TRUE(rows->empty());
  EXPECT_THAT(table.slot(2).blocks, ElementsAre(3, 1, 7, 0));
}

TEST(SlotTableTest, ASlotCanBeReusedInThePlanThatReleasesIt) {
  SlotTable table(kLimits);
  ASSERT_TRUE(table.Apply(Plan(With("step_id: 1"))).ok());
  const uint64_t first_generation = table.slot(2).generation;
  ASSERT_TRUE(table.Apply(Plan(With("step_id: 2 released_slots: 2"))).ok());
  EXPECT_NE(table.slot(2).generation, first_generation);
  // A result of the sequence before is not taken for one of the new sequence.
  table.AppendKnownToken(2, first_generation, 42);
  EXPECT_EQ(table.slot(2).tokens.size(), 5u);
}

TEST(SlotTableTest, ResumesWithComputedTokens) {
  SlotTable table(kLimits);
  const auto rows = table.Apply(Plan(R"(step_id: 1
    new_sequences { slot: 0 token_ids: [1, 2, 3, 4, 5, 6] num_prompt_tokens: 2
                    num_computed_tokens: 4 block_tables { block_ids: [3, 1] } }
    row_slots: 0 row_num_tokens: 2 row_samples: 1)"));
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)[0].first_position, 4);
  EXPECT_TRUE((*rows)[0].samples);
}

TEST(SlotTableTest, TokensComputedInsideABlockAreCopied) {
  SlotTable table(kLimits);
  ASSERT_TRUE(table.Apply(Plan(With("step_id: 1"))).ok());
  EXPECT_TRUE(table.block_copies().empty());
  const auto rows = table.Apply(Plan(R"(step_id: 2
    new_sequences { slot: 0 token_ids: [1, 2, 3, 4, 5, 6, 7] num_prompt_tokens: 2
                    num_computed_tokens: 6 copied_block: 9 block_tables { block_ids: [3, 8] } }
    row_slots: 0 row_num_tokens: 1 row_samples: 1)"));
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)[0].first_position, 6);
  ASSERT_EQ(table.block_copies().size(), 1u);
  EXPECT_EQ(table.block_copies()[0].from, 9);
  EXPECT_EQ(table.block_copies()[0].to, 8);
  ASSERT_TRUE(table.Apply(Plan("step_id: 3")).ok());
  EXPECT_TRUE(table.block_copies().empty());
}

constexpr char kDrafted[] =
    "step_id: 2 row_slots: 2 row_num_tokens: 3 row_samples: 1 drafts { slot: 2 token_ids: [7, 8] }";

TEST(SlotTableTest, ADraftCountsAsFarAsItIsRight) {
  SlotTable table(kLimits);
  ASSERT_TRUE(
      table.Apply(Plan(With("step_id: 1 row_slots: 2 row_num_tokens: 5 row_samples: 1"))).ok());
  const uint64_t generation = table.slot(2).generation;
  table.AppendKnownToken(2, generation, 42);
  const auto rows = table.Apply(Plan(kDrafted));
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)[0].first_position, 5);
  EXPECT_EQ((*rows)[0].num_tokens, 3);
  EXPECT_EQ((*rows)[0].num_drafts, 2);
  EXPECT_TRUE((*rows)[0].samples);
  EXPECT_TRUE(table.AcceptDrafted(2, generation, 6, 7));
  EXPECT_TRUE(table.AcceptDrafted(2, generation, 7, 9));
  EXPECT_FALSE(table.AcceptDrafted(2, generation, 8, 1));
  EXPECT_THAT(table.slot(2).tokens, ElementsAre(5, 6, 7, 8, 9, 42, 7, 9));
  EXPECT_EQ(table.slot(2).num_tokens, 8);
  EXPECT_EQ(table.slot(2).num_computed_tokens, 7);
  EXPECT_TRUE(table.slot(2).draft.empty());
}

TEST(SlotTableTest, ADraftNeedsKnownTokensAndIsAwaited) {
  SlotTable early(kLimits), table(kLimits);
  const StepPlan start = Plan(With("step_id: 1 row_slots: 2 row_num_tokens: 5 row_samples: 1"));
  ASSERT_TRUE(early.Apply(start).ok() && table.Apply(start).ok());
  EXPECT_THAT(std::string(early.Apply(Plan(kDrafted)).status().message()),
              HasSubstr("are known; expected all"));
  table.AppendKnownToken(2, table.slot(2).generation, 42);
  ASSERT_TRUE(table.Apply(Plan(kDrafted)).ok());
  const auto next = table.Apply(Plan("step_id: 3 row_slots: 2 row_num_tokens: 1 row_samples: 1"));
  EXPECT_THAT(std::string(next.status().message()), HasSubstr("has no result yet"));
}

TEST(SlotTableTest, AForcedTokenTakesThePlaceOfTheLastOne) {
  SlotTable table(kLimits);
  ASSERT_TRUE(
      table.Apply(Plan(With("step_id: 1 row_slots: 2 row_num_tokens: 5 row_samples: 1"))).ok());
  table.AppendKnownToken(2, table.slot(2).generation, 42);
  ASSERT_TRUE(table
                  .Apply(Plan("step_id: 2 row_slots: 2 row_num_tokens: 1 row_samples: 1 "
                              "forced_tokens { slot: 2 token_id: 11 }"))
                  .ok());
  EXPECT_THAT(table.slot(2).tokens, ElementsAre(5, 6, 7, 8, 9, 11));
}

TEST(SlotTableTest, ResetStartsOver) {
  SlotTable table(kLimits);
  ASSERT_TRUE(table.Apply(Plan(With("step_id: 1"))).ok());
  table.Reset();
  EXPECT_TRUE(table.Apply(Plan(With("step_id: 1"))).ok());
}

struct BrokenPlan {
  const char* why;   // part of the message
  const char* plan;  // after a first plan that started slot 2
};

class BrokenPlanTest : public testing::TestWithParam<BrokenPlan> {};

TEST_P(BrokenPlanTest, IsAnInternalErrorNamingTheRule) {
  SlotTable table(kLimits);
  ASSERT_TRUE(table.Apply(Plan(With("step_id: 1"))).ok());
  std::string text = GetParam().plan;
  if (text.find("step_id") == std::string::npos) text += " step_id: 2";
  const auto rows = table.Apply(Plan(text));
  ASSERT_EQ(rows.status().code(), absl::StatusCode::kInternal) << rows.status();
  EXPECT_THAT(std::string(rows.status().message()), HasSubstr("step plan: "));
  EXPECT_THAT(std::string(rows.status().message()), HasSubstr(GetParam().why));
}

INSTANTIATE_TEST_SUITE_P(
    Rules,
    BrokenPlanTest,
    testing::Values(
        BrokenPlan{"step_id is 3; expected 2", "step_id: 3"},
        BrokenPlan{"forced_tokens holds 100", "forced_tokens { slot: 2 token_id: 100 }"},
        BrokenPlan{"forced_tokens holds slot 1, which has no",
                   "forced_tokens { slot: 1 token_id: 1 }"},
        BrokenPlan{"not a known one that it has sampled", "forced_tokens { slot: 2 token_id: 1 }"},
        BrokenPlan{"has no row", "drafts { slot: 2 token_ids: 1 }"},
        BrokenPlan{
            "drafts holds 100",
            "row_slots: 2 row_num_tokens: 2 row_samples: 1 drafts { slot: 2 token_ids: 100 }"},
        BrokenPlan{"empty draft",
                   "row_slots: 2 row_num_tokens: 1 row_samples: 1 drafts { slot: 2 }"},
        BrokenPlan{"ends before it",
                   "row_slots: 2 row_num_tokens: 2 row_samples: 0 drafts { slot: 2 token_ids: 1 }"},
        BrokenPlan{"released_slots holds 4", "released_slots: 4"},
        BrokenPlan{"released_slots holds slot 1, which has no", "released_slots: 1"},
        BrokenPlan{"which has no sequence", "released_slots: [2, 2]"},
        BrokenPlan{"which has a sequence",
                   "new_sequences { slot: 2 token_ids: 1 num_prompt_tokens: 1 }"},
        BrokenPlan{"slots below 4", "new_sequences { slot: 9 token_ids: 1 num_prompt_tokens: 1 }"},
        BrokenPlan{"has 0 tokens", "new_sequences { slot: 1 }"},
        BrokenPlan{"token_ids holds 100",
                   "new_sequences { slot: 1 token_ids: 100 num_prompt_tokens: 1 }"},
        BrokenPlan{"token_ids holds 4294967295",
                   "new_sequences { slot: 1 token_ids: 4294967295 num_prompt_tokens: 1 }"},
        BrokenPlan{"2 prompt", "new_sequences { slot: 1 token_ids: 1 num_prompt_tokens: 2 }"},
        BrokenPlan{
            "1 computed",
            "new_sequences { slot: 1 token_ids: 1 num_prompt_tokens: 1 num_computed_tokens: 1 }"},
        BrokenPlan{"1 computed tokens in blocks of 4 and no copied_block",
                   "new_sequences { slot: 1 token_ids: [1, 2] num_prompt_tokens: 1 "
                   "num_computed_tokens: 1 block_tables { block_ids: 1 } }"},
        BrokenPlan{"0 computed tokens in blocks of 4 and a copied_block",
                   "new_sequences { slot: 1 token_ids: 1 num_prompt_tokens: 1 copied_block: 2 "
                   "block_tables { block_ids: 1 } }"},
        BrokenPlan{"copied_block is 10",
                   "new_sequences { slot: 1 token_ids: [1, 2] num_prompt_tokens: 1 "
                   "num_computed_tokens: 1 copied_block: 10 block_tables { block_ids: 1 } }"},
        BrokenPlan{"no place for copied_block",
                   "new_sequences { slot: 1 token_ids: [1, 2] num_prompt_tokens: 1 "
                   "num_computed_tokens: 1 copied_block: 2 }"},
        BrokenPlan{"block_tables holds 10",
                   "new_sequences { slot: 1 token_ids: 1 num_prompt_tokens: 1 block_tables { "
                   "block_ids: 10 } }"},
        BrokenPlan{"more than 8 blocks",
                   "new_sequences { slot: 1 token_ids: 1 num_prompt_tokens: 1 "
                   "block_tables { block_ids: [0, 1, 2, 3, 4, 5, 6, 7, 8] } }"},
        BrokenPlan{"KV group",
                   "new_sequences { slot: 1 token_ids: 1 num_prompt_tokens: 1 block_tables {} "
                   "block_tables {} }"},
        BrokenPlan{"adapter_idx",
                   "new_sequences { slot: 1 token_ids: 1 num_prompt_tokens: 1 adapter_idx: 1 }"},
        BrokenPlan{"allowed_token_ids holds 100",
                   "new_sequences { slot: 1 token_ids: 1 num_prompt_tokens: 1 "
                   "sampling { allowed_token_ids: 100 } }"},
        BrokenPlan{"bias_token_ids holds 101",
                   "new_sequences { slot: 1 token_ids: 1 num_prompt_tokens: 1 "
                   "sampling { bias_token_ids: 101 bias_values: 1 } }"},
        BrokenPlan{"bias_values has 0",
                   "new_sequences { slot: 1 token_ids: 1 num_prompt_tokens: 1 "
                   "sampling { bias_token_ids: 1 } }"},
        BrokenPlan{"bad_words holds 100",
                   "new_sequences { slot: 1 token_ids: 1 num_prompt_tokens: 1 "
                   "sampling { bad_words { token_ids: 100 } } }"},
        BrokenPlan{"empty word",
                   "new_sequences { slot: 1 token_ids: 1 num_prompt_tokens: 1 sampling { bad_words "
                   "{} } }"},
        BrokenPlan{"log-probabilities",
                   "new_sequences { slot: 1 token_ids: 1 num_prompt_tokens: 1 sampling { "
                   "num_logprobs: 101 } }"},
        BrokenPlan{"appended_slots holds slot 1",
                   "appended_slots: 1 appended_counts: 1 appended_blocks: 1"},
        BrokenPlan{"entries", "appended_slots: 2 appended_blocks: 1"},
        BrokenPlan{"add up to more", "appended_slots: 2 appended_counts: 2 appended_blocks: 1"},
        BrokenPlan{"add up to more",
                   "appended_slots: 2 appended_counts: 4294967295 appended_blocks: 1"},
        BrokenPlan{"add up to 1", "appended_slots: 2 appended_counts: 1 appended_blocks: [1, 2]"},
        BrokenPlan{"appended_blocks holds 10",
                   "appended_slots: 2 appended_counts: 1 appended_blocks: 10"},
        BrokenPlan{"appended_groups holds 1",
                   "appended_slots: 2 appended_counts: 1 appended_groups: 1 appended_blocks: 1"},
        BrokenPlan{"more than 8 blocks",
                   "appended_slots: 2 appended_counts: 7 appended_blocks: [0, 2, 4, 5, 6, 7, 8]"},
        BrokenPlan{"entries", "row_slots: 2 row_num_tokens: 1"},
        BrokenPlan{"row_slots holds slot 3", "row_slots: 3 row_num_tokens: 1 row_samples: 0"},
        BrokenPlan{"row_slots holds 4", "row_slots: 4 row_num_tokens: 1 row_samples: 0"},
        BrokenPlan{"twice", "row_slots: [2, 2] row_num_tokens: [1, 1] row_samples: [0, 0]"},
        BrokenPlan{"has 0 tokens", "row_slots: 2 row_num_tokens: 0 row_samples: 0"},
        BrokenPlan{"has 6 tokens", "row_slots: 2 row_num_tokens: 6 row_samples: 1"},
        BrokenPlan{"row_samples of slot 2 is 0", "row_slots: 2 row_num_tokens: 5 row_samples: 0"},
        BrokenPlan{"row_samples of slot 2 is 1", "row_slots: 2 row_num_tokens: 4 row_samples: 1"},
        BrokenPlan{"reaches position 1 with 0 blocks",
                   "new_sequences { slot: 1 token_ids: 1 num_prompt_tokens: 1 } "
                   "row_slots: 1 row_num_tokens: 1 row_samples: 1"}));

TEST(SlotTableTest, AStepHasAtMostTheBudgetOfTokens) {
  StepLimits limits = kLimits;
  limits.max_step_tokens = 4;
  SlotTable table(limits);
  const auto rows =
      table.Apply(Plan(With("step_id: 1 row_slots: 2 row_num_tokens: 5 row_samples: 1")));
  EXPECT_THAT(std::string(rows.status().message()), HasSubstr("at most 4"));
}

}  // namespace
}  // namespace pagoda::engine
