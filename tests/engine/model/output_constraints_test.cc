#include "engine/model/output_constraints.h"

#include <algorithm>

#include "engine/guided/constraint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::engine {
namespace {

using guided::ConstraintSource;
using internal::v1::StepPlan;
using internal::v1::StepResult;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// Tokens of the test: 0 "a", 1 "b", 2 "ab", 3 "c", 4 is special (no bytes), 5 is EOS.
constexpr int32_t kVocab = 6;
constexpr uint32_t kEos = 5;

class OutputConstraintsTest : public ::testing::Test {
 protected:
  OutputConstraintsTest()
      : table_({.num_slots = 2,
                .max_step_tokens = 64,
                .max_model_len = 64,
                .vocab_size = kVocab,
                .block_size = 16,
                .num_blocks = 16}),
        constraints_(2, kVocab) {}

  // A plan that starts a sequence of `tokens` (one of them prompt) in the slot.
  StepPlan Start(uint32_t slot, const char* regex, std::vector<uint32_t> tokens) {
    StepPlan plan;
    plan.set_step_id(++step_);
    internal::v1::NewSequence& sequence = *plan.add_new_sequences();
    sequence.set_slot(slot);
    for (const uint32_t token : tokens) sequence.add_token_ids(token);
    sequence.set_num_prompt_tokens(1);
    sequence.add_block_tables()->add_block_ids(slot);
    const auto compiled = guided::CompileConstraint(
        {.kind = ConstraintSource::Kind::kRegex, .text = regex}, guided::Limits());
    internal::v1::OutputConstraint& constraint = *sequence.mutable_sampling()->mutable_constraint();
    constraint.set_name((*compiled)->name);
    constraint.set_automaton((*compiled)->automaton);
    constraint.add_end_token_ids(kEos);
    plan.add_row_slots(slot);
    plan.add_row_num_tokens(static_cast<uint32_t>(tokens.size()));
    plan.add_row_samples(1);
    return plan;
  }
  static std::string Vocabulary() {
    return guided::TokenTrie({{"a", 0}, {"b", 1}, {"ab", 2}, {"c", 3}}).Serialize();
  }
  void Apply(const StepPlan& plan) {
    ASSERT_TRUE(table_.Apply(plan).ok());
    const absl::Status status = constraints_.Apply(plan, table_);
    ASSERT_TRUE(status.ok()) << status;
  }
  std::vector<int32_t> Allowed(int32_t slot) {
    std::vector<int32_t> allowed, masked;
    can_go_on_ = constraints_.Mask(slot, table_.slot(slot), &allowed, &masked);
    if (masked.empty()) return allowed;
    for (int32_t id = 0; id < kVocab; ++id)
      if (std::find(masked.begin(), masked.end(), id) == masked.end()) allowed.push_back(id);
    return allowed;
  }
  StepResult Say(int32_t slot, TokenId token) {
    StepResult result;
    const uint64_t generation = table_.slot(slot).generation;
    table_.AppendKnownToken(slot, generation, token);
    constraints_.Conclude(slot, generation, table_, &result);
    return result;
  }

  SlotTable table_;
  OutputConstraints constraints_;
  uint64_t step_ = 0;
  bool can_go_on_ = true;
};

TEST_F(OutputConstraintsTest, FollowsTokensAndEndsWhereNothingFollows) {
  StepPlan plan = Start(0, "(ab)+c?", {3});
  plan.set_vocabulary(Vocabulary());
  Apply(plan);
  EXPECT_THAT(Allowed(0), UnorderedElementsAre(0, 2));
  EXPECT_THAT(Say(0, 2).complete_slots(), IsEmpty());
  // The text may end here: EOS too.
  EXPECT_THAT(Allowed(0), UnorderedElementsAre(0, 2, 3, 5));
  EXPECT_THAT(Say(0, 3).complete_slots(), ElementsAre(0));
}

TEST_F(OutputConstraintsTest, EosEnds) {
  StepPlan plan = Start(1, "a*", {3});
  plan.set_vocabulary(Vocabulary());
  Apply(plan);
  EXPECT_THAT(Allowed(1), UnorderedElementsAre(0, 5));
  EXPECT_THAT(Say(1, 5).complete_slots(), ElementsAre(1));
}

TEST_F(OutputConstraintsTest, ResumesAfterPreemptionFromItsTokens) {
  StepPlan plan = Start(0, "abc|abab", {3, 0, 1});
  plan.set_vocabulary(Vocabulary());
  Apply(plan);
  EXPECT_THAT(Allowed(0), UnorderedElementsAre(0, 2, 3));
}

TEST_F(OutputConstraintsTest, AllowedIdsOfTheRequestNarrowIt) {
  StepPlan plan = Start(0, "a*b", {3});
  plan.set_vocabulary(Vocabulary());
  plan.mutable_new_sequences(0)->mutable_sampling()->add_allowed_token_ids(1);
  plan.mutable_new_sequences(0)->mutable_sampling()->add_allowed_token_ids(3);
  Apply(plan);
  EXPECT_THAT(Allowed(0), ElementsAre(1));
}

TEST_F(OutputConstraintsTest, SaysWhenItIsStuck) {
  StepPlan plan = Start(0, "x", {3});  // no token has that byte
  plan.set_vocabulary(Vocabulary());
  Apply(plan);
  EXPECT_THAT(Allowed(0), IsEmpty());
  EXPECT_FALSE(can_go_on_);
  const StepResult result = Say(0, 0);
  EXPECT_THAT(result.stuck_slots(), ElementsAre(0));
  EXPECT_THAT(result.complete_slots(), IsEmpty());
}

TEST_F(OutputConstraintsTest, RefusesBrokenPlans) {
  StepPlan plan = Start(0, "a", {3});
  ASSERT_TRUE(table_.Apply(plan).ok());
  EXPECT_TRUE(absl::IsInternal(constraints_.Apply(plan, table_)));  // no vocabulary
  plan.set_vocabulary("nonsense");
  EXPECT_TRUE(absl::IsInternal(constraints_.Apply(plan, table_)));
  plan.set_vocabulary(Vocabulary());
  plan.mutable_new_sequences(0)->mutable_sampling()->mutable_constraint()->set_automaton("x");
  EXPECT_TRUE(absl::IsInternal(constraints_.Apply(plan, table_)));
}

}  // namespace
}  // namespace pagoda::engine
