#include "engine/model/weight_loader.h"

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model/architecture.h"
#include "engine/model/model_shard.h"
#include "kernels/backend.h"
#include "tests/engine/model/random_llama.h"

namespace pagoda::engine {
namespace {

using testing::HasSubstr;

class WeightLoaderTest : public testing::Test {
 protected:
  absl::StatusOr<Weights> Load(const ModelConfig& model, WeightRange range) {
    const auto checkpoint = OpenModelCheckpoint(dir_.path(), model);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    auto plans = PlanWeights(FindArchitecture(model.architecture)->weights(model), range);
    EXPECT_TRUE(plans.ok()) << plans.status();
    auto weights = Weights::Allocate(*backend_, *std::move(plans), DType::kFloat32);
    EXPECT_TRUE(weights.ok()) << weights.status();
    const absl::Status loaded = LoadWeights(*backend_, **checkpoint, *weights, progress_);
    if (!loaded.ok()) return loaded;
    return weights;
  }

  // weight * x, by the backend, whatever its format.
  std::vector<float> Times(const kernels::LinearWeight& weight, const std::vector<float>& x) {
    std::vector<float> y(static_cast<size_t>(weight.n));
    EXPECT_TRUE(backend_
                    ->Linear({.x = x.data(),
                              .weight = weight,
                              .y = y.data(),
                              .m = 1,
                              .x_stride = weight.k,
                              .y_stride = weight.n})
                    .ok());
    return y;
  }

  void CheckColumns();

  explicit WeightLoaderTest(fixtures::ModelFiles files = RandomLlama())
      : files_(std::move(files)) {}

  fixtures::ModelFiles files_;
  const fixtures::TemporaryDir dir_ = fixtures::WriteModelDir(files_);
  const ModelConfig model_ = *LoadModelConfig(dir_.path());
  const std::unique_ptr<kernels::Backend> backend_ =
      *kernels::OpenBackend("cpu", {.cpu_threads = 1});
  WeightProgressFn progress_;
};

// Two ranks read so many columns of its rows that each piece is read by itself.
class WideWeightLoaderTest : public WeightLoaderTest {
 protected:
  WideWeightLoaderTest() : WeightLoaderTest(RandomLlama(1, 96, 2048)) {}
};

TEST_F(WeightLoaderTest, FusedRowsComeFromTheirTensors) {
  const auto weights = Load(model_, {.end_layer = 2});
  ASSERT_TRUE(weights.ok()) << weights.status();
  std::vector<float> unit(48, 0.0f);
  unit[5] = 1.0f;
  const std::vector<float> column = Times(weights->matrix(WeightRole::kQkv, 1), unit);
  ASSERT_EQ(column.size(), 64u + 32 + 32);
  const auto& k = files_.tensor("model.layers.1.self_attn.k_proj.weight").values;
  for (size_t row = 0; row < 32; ++row) EXPECT_EQ(column[64 + row], k[row * 48 + 5]);
  const auto& v = files_.tensor("model.layers.1.self_attn.v_proj.weight").values;
  for (size_t row = 0; row < 32; ++row) EXPECT_EQ(column[96 + row], v[row * 48 + 5]);
  const float* norm = weights->vector(WeightRole::kFinalNorm);
  const auto& expected = files_.tensor("model.norm.weight").values;
  EXPECT_EQ(std::vector<float>(norm, norm + 48), expected);
  EXPECT_EQ(weights->vector(WeightRole::kQkvBias, 0), nullptr);
}

// Two ranks' halves add up to the product of the whole.
TEST_F(WeightLoaderTest, RanksHoldTheirColumns) { CheckColumns(); }

TEST_F(WideWeightLoaderTest, RanksHoldTheirColumns) { CheckColumns(); }

TEST_F(WideWeightLoaderTest, RanksReadNoMoreThanTheirColumns) {
  uint64_t total = 0;
  progress_ = [&total](uint64_t, uint64_t bytes_total) { total = bytes_total; };
  ASSERT_TRUE(Load(model_, {.end_layer = 2, .tensor_rank = 1, .tensor_ranks = 2}).ok());
  // The columns of attention_out are too few: its rows are read whole.
  const uint64_t attention_out_bytes = 2 * 64 * 48 * sizeof(float);
  EXPECT_EQ(total, *RankWeightBytes(model_, DType::kFloat32, 2) + attention_out_bytes / 2);
}

void WeightLoaderTest::CheckColumns() {
  std::vector<float> x(static_cast<size_t>(model_.intermediate_size));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3.0f;
  const auto whole = Load(model_, {.end_layer = 2});
  ASSERT_TRUE(whole.ok()) << whole.status();
  const std::vector<float> expected = Times(whole->matrix(WeightRole::kDown, 0), x);
  std::vector<float> sum(expected.size(), 0.0f);
  for (int32_t rank = 0; rank < 2; ++rank) {
    const auto part = Load(model_, {.end_layer = 2, .tensor_rank = rank, .tensor_ranks = 2});
    ASSERT_TRUE(part.ok()) << part.status();
    const auto width = static_cast<ptrdiff_t>(x.size() / 2);
    const std::vector<float> half(x.begin() + width * rank, x.begin() + width * (rank + 1));
    const std::vector<float> y = Times(part->matrix(WeightRole::kDown, 0), half);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += y[i];
  }
  for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], expected[i], 1e-3);
}

TEST_F(WeightLoaderTest, ProgressEndsAtTheTotal) {
  uint64_t last_done = 0, total = 0;
  progress_ = [&](uint64_t bytes_done, uint64_t bytes_total) {
    EXPECT_GT(bytes_done, last_done);
    last_done = bytes_done;
    total = bytes_total;
  };
  ASSERT_TRUE(Load(model_, {.end_layer = 2}).ok());
  EXPECT_EQ(last_done, total);
  EXPECT_EQ(total, WeightBytes(model_, DType::kFloat32));
}

TEST_F(WeightLoaderTest, B094_AFileThatShrinksWhileReadEndsTheLoad) {
  const auto checkpoint = OpenModelCheckpoint(dir_.path(), model_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  auto plans =
      PlanWeights(FindArchitecture(model_.architecture)->weights(model_), {.end_layer = 2});
  auto weights = Weights::Allocate(*backend_, *std::move(plans), DType::kFloat32);
  ASSERT_TRUE(weights.ok()) << weights.status();
  ASSERT_EQ(truncate((dir_.path() + "/model.safetensors").c_str(), 20000), 0);
  const absl::Status status = LoadWeights(*backend_, **checkpoint, *weights, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.safetensors"));
}

}  // namespace
}  // namespace pagoda::engine
