#include "engine/model/model_shard.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::engine {
namespace {

ModelConfig LlamaWithHeads(int32_t num_heads, int32_t num_kv_heads) {
  ModelConfig model;
  model.architecture = "LlamaForCausalLM";
  model.num_layers = 2;
  model.hidden_size = 64;
  model.intermediate_size = 96;
  model.num_heads = num_heads;
  model.num_kv_heads = num_kv_heads;
  model.head_dim = 8;
  model.vocab_size = 257;
  return model;
}

TEST(ModelShardTest, OneRankHasEverything) {
  const auto shard = ShardModel(LlamaWithHeads(8, 4), 0, 1);
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_TRUE(shard->is_whole());
  EXPECT_EQ(shard->ToString(),
            "rank 0 of 1: heads 0 to 7, 4 KV heads, inner width 96, ids 0 to 256");
}

TEST(ModelShardTest, RanksShareHeadsWidthAndVocabulary) {
  EXPECT_EQ(ShardModel(LlamaWithHeads(8, 4), 1, 2)->ToString(),
            "rank 1 of 2: heads 4 to 7, 2 KV heads, inner width 48, ids 136 to 256");
  EXPECT_EQ(ShardModel(LlamaWithHeads(8, 4), 3, 4)->ToString(),
            "rank 3 of 4: heads 6 to 7, 1 KV heads, inner width 24, ids 216 to 256");
}

TEST(ModelShardTest, KvHeadsRepeatWhereRanksOutnumberThem) {
  EXPECT_EQ(ShardModel(LlamaWithHeads(8, 1), 2, 4)->model.num_kv_heads, 1);
  EXPECT_EQ(ShardModel(LlamaWithHeads(8, 2), 7, 8)->model.num_kv_heads, 1);
  EXPECT_EQ(ShardModel(LlamaWithHeads(8, 2), 7, 8)->model.num_heads, 1);
}

TEST(ModelShardTest, ExpertsAreDividedInside) {
  ModelConfig model = LlamaWithHeads(8, 4);
  model.experts = ExpertConfig{.num_experts = 4, .experts_per_token = 2, .intermediate_size = 40};
  const auto shard = ShardModel(model, 1, 2);
  ASSERT_TRUE(shard.ok());
  EXPECT_EQ(shard->model.experts->intermediate_size, 20);
  EXPECT_EQ(shard->model.experts->num_experts, 4);
  EXPECT_THAT(shard->ToString(), ::testing::HasSubstr("of experts 20"));
}

// Matrices in two bytes, vectors in four; each of two ranks has half of every matrix, 136 rows of
// the vocabulary's two for its 257, and every norm.
TEST(ModelShardTest, RanksHoldTheirPartOfTheWeights) {
  const ModelConfig model = LlamaWithHeads(8, 4);
  const uint64_t layer = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 96;
  const uint64_t norms = 2 * 2 * 64 + 64;
  EXPECT_EQ(*RankWeightBytes(model, DType::kBFloat16, 1),
            2 * (2 * layer + 2 * 257 * 64) + 4 * norms);
  EXPECT_EQ(*RankWeightBytes(model, DType::kBFloat16, 1), WeightBytes(model, DType::kBFloat16));
  EXPECT_EQ(*RankWeightBytes(model, DType::kBFloat16, 2),
            2 * (2 * layer / 2 + 2 * 136 * 64) + 4 * norms);
  EXPECT_FALSE(RankWeightBytes(model, DType::kBFloat16, 3).ok());
}

// Impossible splits: the three numbers are named.
TEST(ModelShardTest, B079_RefusesWithTheReason) {
  EXPECT_THAT(std::string(CheckTensorRanks(LlamaWithHeads(8, 4), 9).message()),
              ::testing::HasSubstr("9 tensor ranks, expected 1 to 8"));
  EXPECT_FALSE(CheckTensorRanks(LlamaWithHeads(8, 4), 0).ok());
  EXPECT_THAT(std::string(CheckTensorRanks(LlamaWithHeads(9, 3), 2).message()),
              ::testing::AllOf(::testing::HasSubstr("2 tensor ranks"),
                               ::testing::HasSubstr("9 query heads"),
                               ::testing::HasSubstr("3 KV heads")));
  EXPECT_FALSE(CheckTensorRanks(LlamaWithHeads(12, 3), 2).ok());
  EXPECT_FALSE(CheckTensorRanks(LlamaWithHeads(12, 4), 6).ok());
  EXPECT_TRUE(CheckTensorRanks(LlamaWithHeads(12, 3), 6).ok());
  ModelConfig model = LlamaWithHeads(8, 8);
  model.intermediate_size = 90;
  EXPECT_THAT(std::string(CheckTensorRanks(model, 4).message()),
              ::testing::HasSubstr("intermediate_size of 90 is no multiple of 4"));
  model = LlamaWithHeads(8, 8);
  model.architecture = "Olmo2ForCausalLM";
  EXPECT_THAT(std::string(CheckTensorRanks(model, 2).message()),
              ::testing::HasSubstr("normalises the queries of all heads together"));
  EXPECT_TRUE(CheckTensorRanks(model, 1).ok());
}

}  // namespace
}  // namespace pagoda::engine
