#include "kernels/ops/elementwise.h"

#include <cmath>

#include "gtest/gtest.h"
#include "tests/kernels/backend_fixture.h"
#include "tests/reference/layers.h"

namespace pagoda::kernels {
namespace {

class ElementwiseTest : public testing::TestWithParam<BackendCase> {
 protected:
  ElementwiseTest() : backend_(OpenForTest(GetParam())) {}
  std::unique_ptr<Backend> backend_;
};

TEST_P(ElementwiseTest, RmsNormMatchesReference) {
  for (const int64_t width : {1, 7, 16, 63, 64, 100, 576, 4097}) {
    for (const float offset : {0.0f, 1.0f}) {
      const int64_t rows = 5, x_stride = width + 3, y_stride = width + 1;
      const std::vector<float> x = RandomFloats(rows * x_stride, 1, 3.0f);
      const std::vector<float> weight = RandomFloats(width, 2);
      std::vector<float> y(rows * y_stride, 123.0f);
      const absl::Status status = backend_->RmsNorm({.x = x.data(),
                                                     .weight = weight.data(),
                                                     .y = y.data(),
                                                     .rows = rows,
                                                     .width = width,
                                                     .x_stride = x_stride,
                                                     .y_stride = y_stride,
                                                     .epsilon = 1e-6f,
                                                     .weight_offset = offset});
      ASSERT_TRUE(status.ok()) << status;
      for (int64_t i = 0; i < rows; ++i) {
        const std::vector<double> expected =
            reference::RmsNorm({x.begin() + i * x_stride, x.begin() + i * x_stride + width},
                               {weight.begin(), weight.end()},
                               1e-6,
                               static_cast<double>(offset));
        for (int64_t j = 0; j < width; ++j) {
          ASSERT_NEAR(y[i * y_stride + j], expected[j], 2e-6 * (1 + std::abs(expected[j])));
        }
        EXPECT_EQ(y[i * y_stride + width], 123.0f);
      }
    }
  }
}

TEST_P(ElementwiseTest, RmsNormWorksInPlaceAndInBatches) {
  const int64_t width = 576, rows = 300;
  const std::vector<float> before = RandomFloats(rows * width, 1);
  const std::vector<float> weight = RandomFloats(width, 2);
  const auto run = [&](float* data, int64_t count) {
    ASSERT_TRUE(backend_
                    ->RmsNorm({.x = data,
                               .weight = weight.data(),
                               .y = data,
                               .rows = count,
                               .width = width,
                               .x_stride = width,
                               .y_stride = width})
                    .ok());
  };
  std::vector<float> together = before, alone = before;
  run(together.data(), rows);
  for (int64_t i = 0; i < rows; ++i) run(alone.data() + i * width, 1);
  EXPECT_TRUE(SameBits(together, alone));
}

TEST_P(ElementwiseTest, SiluMulMatchesReference) {
  for (const int64_t width : {1, 15, 16, 100, 1536}) {
    const int64_t rows = 7;
    std::vector<float> gate_up = RandomFloats(rows * 2 * width, 3, 10.0f);
    gate_up[0] = -200.0f;
    std::vector<float> y(rows * width, NAN);
    ASSERT_TRUE(
        backend_->SiluMul({.gate_up = gate_up.data(), .y = y.data(), .rows = rows, .width = width})
            .ok());
    for (int64_t i = 0; i < rows; ++i) {
      const std::vector<double> expected = reference::SiluMul(
          {gate_up.begin() + i * 2 * width, gate_up.begin() + (i + 1) * 2 * width});
      for (int64_t j = 0; j < width; ++j) {
        ASSERT_NEAR(y[i * width + j], expected[j], 1e-5 * (1e-3 + std::abs(expected[j])));
      }
    }
  }
}

TEST_P(ElementwiseTest, EmbeddingReadsPackedAndPlainTablesAndClampsIds) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t hidden : {1, 9, 64}) {
      const int64_t vocab = 37;
      std::vector<float> table = RandomFloats(vocab * hidden, 4);
      RoundAll(dtype, &table);
      PackedWeight packed = Pack(*backend_, table, vocab, hidden, dtype);
      LinearWeight plain = {.format = WeightFormat::kRowMajor,
                            .dtype = dtype,
                            .data = table.data(),
                            .n = vocab,
                            .k = hidden};
      std::vector<BFloat16> halves;
      if (dtype == DType::kBFloat16) {
        for (const float v : table) halves.push_back(BFloat16::FromFloat(v));
        plain.data = halves.data();
      }
      const std::vector<int32_t> tokens = {0, 36, 16, 15, 5, -4, 1 << 30};
      const std::vector<int32_t> used = {0, 36, 16, 15, 5, 0, 36};
      for (const LinearWeight& weight : {packed.weight, plain}) {
        std::vector<float> y(tokens.size() * hidden, NAN);
        const absl::Status status =
            backend_->Embedding({.tokens = tokens.data(),
                                 .table = weight,
                                 .y = y.data(),
                                 .rows = static_cast<int64_t>(tokens.size()),
                                 .scale = 1.5f});
        ASSERT_TRUE(status.ok()) << status;
        for (size_t i = 0; i < tokens.size(); ++i) {
          for (int64_t j = 0; j < hidden; ++j) {
            ASSERT_EQ(y[i * hidden + j], table[used[i] * hidden + j] * 1.5f);
          }
        }
        // The same table as a part that begins with id 100: ids of other parts give zeros.
        const std::vector<int32_t> ids = {100, 136, 99, 137, 0, 1 << 30, 116};
        const std::vector<int32_t> rows = {0, 36, -1, -1, -1, -1, 16};
        std::fill(y.begin(), y.end(), NAN);
        ASSERT_TRUE(backend_
                        ->Embedding({.tokens = ids.data(),
                                     .table = weight,
                                     .y = y.data(),
                                     .rows = static_cast<int64_t>(ids.size()),
                                     .first_id = 100,
                                     .is_part = true})
                        .ok());
        for (size_t i = 0; i < ids.size(); ++i) {
          for (int64_t j = 0; j < hidden; ++j) {
            ASSERT_EQ(y[i * hidden + j], rows[i] < 0 ? 0.0f : table[rows[i] * hidden + j]);
          }
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, GathersRowsOfAnyType) {
  const std::vector<float> x = RandomFloats(50 * 9, 5);
  const std::vector<int32_t> indices = {49, 0, 3, 3};
  std::vector<float> y(4 * 9);
  ASSERT_TRUE(
      backend_
          ->GatherRows(
              {.x = x.data(), .indices = indices.data(), .y = y.data(), .rows = 4, .width = 9})
          .ok());
  for (size_t i = 0; i < indices.size(); ++i) {
    for (int j = 0; j < 9; ++j) EXPECT_EQ(y[i * 9 + j], x[indices[i] * 9 + j]);
  }
}

TEST_P(ElementwiseTest, ResolvesTokensFromTheHostOrFromSlots) {
  const std::vector<int32_t> host = {10, 11, 12, 13}, sources = {-1, 2, 0, -1},
                             last = {100, 101, 102};
  std::vector<int32_t> tokens(4);
  ResolveTokensParams params = {.host_tokens = host.data(),
                                .source_slots = sources.data(),
                                .last_tokens = last.data(),
                                .tokens = tokens.data(),
                                .rows = 4,
                                .num_slots = 3};
  ASSERT_TRUE(backend_->ResolveTokens(params).ok());
  EXPECT_EQ(tokens, (std::vector<int32_t>{10, 102, 100, 13}));
  params.num_slots = 2;
  EXPECT_EQ(backend_->ResolveTokens(params).message(),
            "ResolveTokens.source_slots entry is 2; expected -1 to 1");
}

TEST_P(ElementwiseTest, ScattersPairs) {
  const std::vector<int32_t> pairs = {3, 30, 0, -5};
  std::vector<int32_t> to = {10, 11, 12, 13};
  ScatterParams params = {.pairs = pairs.data(), .to = to.data(), .count = 2, .size = 4};
  ASSERT_TRUE(backend_->Scatter(params).ok());
  EXPECT_EQ(to, (std::vector<int32_t>{-5, 11, 12, 30}));
  params.size = 3;
  EXPECT_EQ(backend_->Scatter(params).message(), "Scatter.pairs index is 3; expected 0 to 2");
}

TEST_P(ElementwiseTest, RefusesWhatItCannotDo) {
  std::vector<float> data(64);
  EXPECT_EQ(
      backend_->RmsNorm({.x = data.data(), .rows = 1, .width = 4, .x_stride = 3, .y_stride = 4})
          .message(),
      "RmsNorm.x_stride is 3; expected at least 4");
  EXPECT_EQ(backend_
                ->SiluMul({.gate_up = data.data(),
                           .y = data.data(),
                           .rows = 1,
                           .width = 4,
                           .dtype = DType::kFloat16})
                .message(),
            "SiluMul.dtype is float16; expected float32");
  EXPECT_EQ(backend_->GatherRows({.rows = -1, .width = 4}).message(),
            "GatherRows.rows is -1; expected at least 0");
  EXPECT_TRUE(backend_->GatherRows({.rows = 0, .width = 4}).ok());
}

INSTANTIATE_TEST_SUITE_P(Isa,
                         ElementwiseTest,
                         testing::ValuesIn(AllBackendCases()),
                         BackendCaseName);

}  // namespace
}  // namespace pagoda::kernels
