#include "engine/model/weight_table.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model/architecture.h"

namespace pagoda::engine {
namespace {

using testing::HasSubstr;

ModelConfig SmallModel() {
  ModelConfig model;
  model.architecture = "LlamaForCausalLM";
  model.num_layers = 3;
  model.hidden_size = 64;
  model.intermediate_size = 96;
  model.num_heads = 8;
  model.num_kv_heads = 2;
  model.head_dim = 8;
  model.vocab_size = 100;
  model.qkv_bias = model.o_bias = model.mlp_bias = true;
  return model;
}

std::vector<WeightPlan> Plan(const ModelConfig& model, WeightRange range) {
  if (range.end_layer == 0) range.end_layer = model.num_layers;
  const auto plans = PlanWeights(FindArchitecture(model.architecture)->weights(model), range);
  EXPECT_TRUE(plans.ok()) << plans.status();
  return plans.ok() ? *plans : std::vector<WeightPlan>();
}

const WeightPlan& Find(const std::vector<WeightPlan>& plans, WeightRole role, int32_t layer) {
  for (const WeightPlan& plan : plans) {
    if (plan.role == role && plan.layer == layer) return plan;
  }
  ADD_FAILURE() << "no such weight";
  return plans.front();
}

TEST(WeightTableTest, OneRankHoldsEverything) {
  const ModelConfig model = SmallModel();
  const std::vector<WeightPlan> plans = Plan(model, {});
  uint64_t num_parameters = 0;
  std::set<std::string> tensors;
  for (const WeightPlan& plan : plans) {
    num_parameters += static_cast<uint64_t>(plan.n * plan.k);
    for (const WeightSlice& slice : plan.slices) {
      EXPECT_TRUE(tensors.insert(slice.tensor).second) << slice.tensor;
      EXPECT_EQ(slice.rows(), slice.tensor_rows);
      EXPECT_EQ(slice.cols(), slice.tensor_cols);
    }
  }
  EXPECT_EQ(num_parameters, NumParameters(model));
  const WeightPlan& qkv = Find(plans, WeightRole::kQkv, 1);
  EXPECT_EQ(qkv.n, 64 + 16 + 16);
  EXPECT_EQ(qkv.slices[2].tensor, "model.layers.1.self_attn.v_proj.weight");
  EXPECT_EQ(qkv.slices[2].weight_row, 80);
}

TEST(WeightTableTest, RanksShareEveryMatrix) {
  const ModelConfig model = SmallModel();
  int64_t q_rows = 0, down_cols = 0, biases_added = 0;
  for (int32_t rank = 0; rank < 2; ++rank) {
    const std::vector<WeightPlan> plans = Plan(model, {.tensor_rank = rank, .tensor_ranks = 2});
    const WeightPlan& qkv = Find(plans, WeightRole::kQkv, 0);
    EXPECT_EQ(qkv.n, 32 + 8 + 8);
    EXPECT_EQ(qkv.slices[0].row_begin, q_rows);
    q_rows = qkv.slices[0].row_end;
    EXPECT_EQ(qkv.slices[1].row_begin, 8 * rank);
    EXPECT_EQ(qkv.slices[1].weight_row, 32);
    const WeightPlan& down = Find(plans, WeightRole::kDown, 0);
    EXPECT_EQ(down.n, 64);
    EXPECT_EQ(down.k, 48);
    EXPECT_EQ(down.slices[0].col_begin, down_cols);
    down_cols = down.slices[0].col_end;
    const WeightPlan& bias = Find(plans, WeightRole::kDownBias, 0);
    EXPECT_EQ(bias.n, 64);
    biases_added += bias.slices[0].rows();
    EXPECT_EQ(Find(plans, WeightRole::kInputNorm, 0).n, 64);
  }
  EXPECT_EQ(q_rows, 64);
  EXPECT_EQ(down_cols, 96);
  EXPECT_EQ(biases_added, 64);  // once
}

TEST(WeightTableTest, KeyValueHeadsRepeatWhereRanksOutnumberThem) {
  for (int32_t rank = 0; rank < 4; ++rank) {
    const std::vector<WeightPlan> plans =
        Plan(SmallModel(), {.tensor_rank = rank, .tensor_ranks = 4});
    const WeightPlan& qkv = Find(plans, WeightRole::kQkv, 0);
    EXPECT_EQ(qkv.slices[0].rows(), 16);
    EXPECT_EQ(qkv.slices[1].rows(), 8);
    EXPECT_EQ(qkv.slices[1].row_begin, 8 * (rank / 2));
  }
}

// 100 ids over 8 ranks: 16 rows each, of which the seventh uses 4 and the last none.
TEST(WeightTableTest, RanksShareTheVocabularyInEqualParts) {
  ModelConfig model = SmallModel();
  model.intermediate_size = 64;
  for (const WeightRole role : {WeightRole::kEmbedding, WeightRole::kLmHead}) {
    for (int32_t rank = 0; rank < 8; ++rank) {
      const WeightPlan plan =
          Find(Plan(model, {.tensor_rank = rank, .tensor_ranks = 8}), role, kNoLayer);
      EXPECT_EQ(plan.n, 16);
      EXPECT_EQ(plan.k, 64);
      ASSERT_EQ(plan.slices.size(), 1u);
      EXPECT_EQ(plan.slices[0].row_begin, std::min(16 * rank, 100));
      EXPECT_EQ(plan.slices[0].row_end, std::min(16 * rank + 16, 100));
      EXPECT_EQ(plan.slices[0].weight_row, 0);
    }
  }
}

TEST(WeightTableTest, UnevenSharesAreRefusedByName) {
  const ModelConfig model = SmallModel();
  const auto plans = PlanWeights(FindArchitecture(model.architecture)->weights(model),
                                 {.end_layer = 3, .tensor_rank = 0, .tensor_ranks = 3});
  EXPECT_EQ(plans.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(plans.status().message()), HasSubstr("q_proj"));
}

TEST(WeightTableTest, StagesHoldTheirLayers) {
  const std::vector<WeightPlan> first =
      Plan(SmallModel(), {.first_layer = 0, .end_layer = 2, .has_head = false});
  const std::vector<WeightPlan> last =
      Plan(SmallModel(), {.first_layer = 2, .end_layer = 3, .has_embedding = false});
  const auto has = [](const std::vector<WeightPlan>& plans, WeightRole role, int32_t layer) {
    return std::any_of(plans.begin(), plans.end(), [&](const WeightPlan& plan) {
      return plan.role == role && plan.layer == layer;
    });
  };
  EXPECT_TRUE(has(first, WeightRole::kEmbedding, kNoLayer));
  EXPECT_FALSE(has(first, WeightRole::kFinalNorm, kNoLayer));
  EXPECT_TRUE(has(first, WeightRole::kQkv, 1));
  EXPECT_FALSE(has(first, WeightRole::kQkv, 2));
  EXPECT_FALSE(has(last, WeightRole::kEmbedding, kNoLayer));
  EXPECT_TRUE(has(last, WeightRole::kLmHead, kNoLayer));
  EXPECT_TRUE(has(last, WeightRole::kDown, 2));
}

}  // namespace
}  // namespace pagoda::engine
