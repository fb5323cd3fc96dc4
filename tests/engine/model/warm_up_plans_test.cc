#include "engine/model/warm_up_plans.h"

#include <numeric>

#include <gtest/gtest.h>

namespace pagoda::engine {
namespace {

struct Case {
  int32_t num_slots, max_step_tokens, max_model_len, block_size;
};

class WarmUpPlansTest : public testing::TestWithParam<Case> {
 protected:
  const StepLimits limits_ = {.num_slots = GetParam().num_slots,
                              .max_step_tokens = GetParam().max_step_tokens,
                              .max_model_len = GetParam().max_model_len,
                              .vocab_size = 10,
                              .block_size = GetParam().block_size,
                              .num_blocks = 1};
};

// The table of slots refuses what breaks a limit.
TEST_P(WarmUpPlansTest, LargestStepIsAllowedAndNothingIsLarger) {
  SlotTable slots(limits_);
  const auto rows = slots.Apply(LargestPromptPlan(limits_));
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(static_cast<int32_t>(rows->size()),
            std::min(limits_.num_slots, limits_.max_step_tokens));
  int64_t tokens = 0;
  for (const StepRow& row : *rows) tokens += row.num_tokens;
  const int64_t room = limits_.max_model_len - RoomAfterLargestPrompt(limits_);
  EXPECT_EQ(tokens, std::min<int64_t>(limits_.max_step_tokens, room * limits_.num_slots));
  const int32_t num_sequences = LargestNumSequences(limits_);
  for (int32_t i = 0; i < RoomAfterLargestPrompt(limits_); ++i) {
    const auto decode = slots.Apply(DecodePlan(static_cast<uint64_t>(i) + 2, num_sequences));
    ASSERT_TRUE(decode.ok()) << decode.status();
    EXPECT_EQ(static_cast<int32_t>(decode->size()), num_sequences);
  }
}

TEST_P(WarmUpPlansTest, SmallPromptIsAllowed) {
  SlotTable slots(limits_);
  const auto rows = slots.Apply(SmallPromptPlan(limits_));
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 1u);
  EXPECT_LE((*rows)[0].num_tokens, std::max(1, limits_.block_size - 1));
}

TEST(NumLayersOfEveryKindTest, EndsWithTheFirstLayerOfTheSecondKind) {
  ModelConfig model = {.num_layers = 4};
  EXPECT_EQ(NumLayersOfEveryKind(model), 1);
  model.experts.emplace();
  EXPECT_EQ(NumLayersOfEveryKind(model), 1);
  model.experts->dense_layers = {true, true, false, true};
  EXPECT_EQ(NumLayersOfEveryKind(model), 3);
  model.experts->dense_layers = {false, true, true, true};
  EXPECT_EQ(NumLayersOfEveryKind(model), 2);
  model.experts->dense_layers = {true, true, true, true};
  EXPECT_EQ(NumLayersOfEveryKind(model), 1);
}

INSTANTIATE_TEST_SUITE_P(Limits,
                         WarmUpPlansTest,
                         testing::Values(Case{256, 8192, 131072, 64},
                                         Case{256, 8192, 16, 16},
                                         Case{8, 8, 256, 16},
                                         Case{64, 17, 100, 16},
                                         Case{1, 1, 1, 16},
                                         Case{4, 512, 2, 1},
                                         Case{3, 10, 7, 4}));

}  // namespace
}  // namespace pagoda::engine
