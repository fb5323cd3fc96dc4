// Layer norm, norms of heads, activations, scaled sums, soft caps, position embeddings.
#include "tests/reference/layers.h"

#include <cmath>

#include "gtest/gtest.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/norm.h"
#include "tests/kernels/backend_fixture.h"

namespace pagoda::kernels {
namespace {

class LayersTest : public testing::TestWithParam<BackendCase> {
 protected:
  LayersTest() : backend_(OpenForTest(GetParam())) {}
  std::unique_ptr<Backend> backend_;
};

std::vector<double> Part(const std::vector<float>& v, int64_t begin, int64_t count) {
  return {v.begin() + begin, v.begin() + begin + count};
}

TEST_P(LayersTest, LayerNormMatchesReference) {
  for (const int64_t width : {1, 7, 16, 63, 64, 100, 576, 4097}) {
    for (const bool has_bias : {false, true}) {
      const int64_t rows = 5, x_stride = width + 3, y_stride = width + 1;
      std::vector<float> x = RandomFloats(rows * x_stride, 1, 3.0f);
      for (float& v : x) v += 50.0f;  // a mean far above the deviation
      const std::vector<float> weight = RandomFloats(width, 2), bias = RandomFloats(width, 3);
      std::vector<float> y(rows * y_stride, 123.0f);
      const absl::Status status = backend_->LayerNorm({.x = x.data(),
                                                       .weight = weight.data(),
                                                       .bias = has_bias ? bias.data() : nullptr,
                                                       .y = y.data(),
                                                       .rows = rows,
                                                       .width = width,
                                                       .x_stride = x_stride,
                                                       .y_stride = y_stride,
                                                       .epsilon = 1e-5f});
      ASSERT_TRUE(status.ok()) << status;
      for (int64_t i = 0; i < rows; ++i) {
        const std::vector<double> expected =
            reference::LayerNorm(Part(x, i * x_stride, width),
                                 Part(weight, 0, width),
                                 has_bias ? Part(bias, 0, width) : std::vector<double>(),
                                 1e-5);
        for (int64_t j = 0; j < width; ++j) {
          ASSERT_NEAR(y[i * y_stride + j], expected[j], 3e-5 * (1 + std::abs(expected[j])));
        }
        EXPECT_EQ(y[i * y_stride + width], 123.0f);
      }
    }
  }
}

TEST_P(LayersTest, LayerNormWorksInPlaceAndInBatches) {
  const int64_t width = 100, rows = 300;
  const std::vector<float> before = RandomFloats(rows * width, 1), weight = RandomFloats(width, 2);
  const auto run = [&](float* data, int64_t count) {
    ASSERT_TRUE(backend_
                    ->LayerNorm({.x = data,
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

TEST_P(LayersTest, HeadNormNormalisesEachHeadOfQAndK) {
  for (const int32_t head_dim : {8, 40, 64, 128}) {
    for (const float offset : {0.0f, 1.0f}) {
      const int32_t num_q = 4, num_kv = 2;
      const int64_t rows = 9, stride = (num_q + 2 * num_kv) * head_dim + 5;
      const std::vector<float> before = RandomFloats(rows * stride, 1, 2.0f);
      const std::vector<float> q = RandomFloats(head_dim, 2), k = RandomFloats(head_dim, 3);
      std::vector<float> after = before;
      const absl::Status status = backend_->HeadNorm({.qkv = after.data(),
                                                      .rows = rows,
                                                      .qkv_stride = stride,
                                                      .num_q_heads = num_q,
                                                      .num_kv_heads = num_kv,
                                                      .head_dim = head_dim,
                                                      .q_weight = q.data(),
                                                      .k_weight = k.data(),
                                                      .epsilon = 1e-6f,
                                                      .weight_offset = offset});
      ASSERT_TRUE(status.ok()) << status;
      for (int64_t i = 0; i < rows; ++i) {
        for (int32_t h = 0; h < num_q + num_kv; ++h) {
          const int64_t at = i * stride + h * head_dim;
          const std::vector<double> expected =
              reference::RmsNorm(Part(before, at, head_dim),
                                 Part(h < num_q ? q : k, 0, head_dim),
                                 1e-6,
                                 static_cast<double>(offset));
          for (int32_t j = 0; j < head_dim; ++j) {
            ASSERT_NEAR(after[at + j], expected[j], 2e-6 * (1 + std::abs(expected[j])));
          }
        }
        for (int64_t j = (num_q + num_kv) * head_dim; j < stride; ++j) {
          ASSERT_EQ(after[i * stride + j], before[i * stride + j]) << "values stay as they are";
        }
      }
    }
  }
}

TEST_P(LayersTest, ActivationsMatchReference) {
  const std::pair<Activation, double (*)(double)> kinds[] = {
      {Activation::kSilu, reference::Silu},
      {Activation::kGelu, reference::Gelu},
      {Activation::kGeluTanh, reference::GeluTanh}};
  for (const auto& [activation, f] : kinds) {
    for (const bool gated : {false, true}) {
      for (const int64_t width : {1, 15, 16, 100, 1536}) {
        SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(activation) << " gated "
                                        << gated << " width " << width);
        const int64_t rows = 7, x_width = gated ? 2 * width : width;
        std::vector<float> x = RandomFloats(rows * x_width, 3, 4.0f);
        x[0] = -200.0f;
        x[rows * x_width - 1] = 200.0f;
        std::vector<float> y(rows * width, NAN);
        const absl::Status status = backend_->Activate({.x = x.data(),
                                                        .y = y.data(),
                                                        .rows = rows,
                                                        .width = width,
                                                        .gated = gated,
                                                        .activation = activation});
        ASSERT_TRUE(status.ok()) << status;
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < width; ++j) {
            const double v = static_cast<double>(x[i * x_width + j]);
            const double up = gated ? static_cast<double>(x[i * x_width + width + j]) : 1.0;
            // Far below 0 the result is the small difference of large numbers, times x.
            ASSERT_NEAR(y[i * width + j],
                        f(v) * up,
                        1e-5 * std::abs(f(v) * up) + 4e-7 * (1 + std::abs(v * up)))
                << v;
          }
        }
      }
    }
  }
}

TEST_P(LayersTest, ActivationsKeepNan) {
  for (const Activation activation :
       {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh}) {
    std::vector<float> x = {1.0f, NAN, 2.0f};
    ASSERT_TRUE(
        backend_
            ->Activate(
                {.x = x.data(), .y = x.data(), .rows = 1, .width = 3, .activation = activation})
            .ok());
    EXPECT_TRUE(std::isnan(x[1])) << static_cast<int>(activation);
    EXPECT_FALSE(std::isnan(x[0]) || std::isnan(x[2]));
  }
}

TEST_P(LayersTest, AddScaledAddsOnce) {
  for (const int64_t count : {1, 17, 4096, 10001}) {
    const std::vector<float> x = RandomFloats(count, 1), before = RandomFloats(count + 1, 2);
    std::vector<float> y = before;
    ASSERT_TRUE(
        backend_->AddScaled({.x = x.data(), .y = y.data(), .count = count, .scale = 0.22f}).ok());
    for (int64_t i = 0; i < count; ++i) {
      const double expected = static_cast<double>(before[i]) + 0.22f * static_cast<double>(x[i]);
      ASSERT_NEAR(y[i], expected, 3e-7 * (1 + std::abs(expected)));
    }
    EXPECT_EQ(y[count], before[count]);
  }
}

TEST_P(LayersTest, AdjustLogitsScalesAndCaps) {
  for (const float cap : {0.0f, 30.0f}) {
    const int64_t rows = 3, width = 5001, stride = 5008;
    const std::vector<float> before = RandomFloats(rows * stride, 1, 60.0f);
    std::vector<float> logits = before;
    ASSERT_TRUE(backend_
                    ->AdjustLogits({.logits = logits.data(),
                                    .rows = rows,
                                    .width = width,
                                    .stride = stride,
                                    .scale = 0.5f,
                                    .soft_cap = cap})
                    .ok());
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < stride; ++j) {
        const double v = 0.5 * static_cast<double>(before[i * stride + j]);
        const double capped = cap > 0.0f ? cap * std::tanh(v / cap) : v;
        const double expected = j < width ? capped : 2.0 * v;
        ASSERT_NEAR(logits[i * stride + j], expected, 3e-6 * (1 + std::abs(expected)));
      }
    }
  }
}

TEST_P(LayersTest, AddEmbeddingAddsRowsOfTheTable) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const int64_t positions = 20, hidden = 33;
    std::vector<float> table = RandomFloats(positions * hidden, 4);
    RoundAll(dtype, &table);
    const PackedWeight packed = Pack(*backend_, table, positions, hidden, dtype);
    const std::vector<int32_t> rows = {0, 19, 7};
    const std::vector<float> before = RandomFloats(rows.size() * hidden, 5);
    std::vector<float> y = before;
    const absl::Status status = backend_->AddEmbedding({.tokens = rows.data(),
                                                        .table = packed.weight,
                                                        .y = y.data(),
                                                        .rows = static_cast<int64_t>(rows.size())});
    ASSERT_TRUE(status.ok()) << status;
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int64_t j = 0; j < hidden; ++j) {
        ASSERT_EQ(y[i * hidden + j], before[i * hidden + j] + table[rows[i] * hidden + j]);
      }
    }
  }
}

TEST_P(LayersTest, RefusesWhatItCannotDo) {
  std::vector<float> data(64);
  EXPECT_EQ(
      backend_->LayerNorm({.x = data.data(), .rows = 1, .width = 4, .x_stride = 3, .y_stride = 4})
          .message(),
      "LayerNorm.x_stride is 3; expected at least 4");
  EXPECT_EQ(backend_
                ->HeadNorm({.qkv = data.data(),
                            .rows = 1,
                            .qkv_stride = 23,
                            .num_q_heads = 2,
                            .num_kv_heads = 1,
                            .head_dim = 8})
                .message(),
            "HeadNorm.qkv_stride is 23; expected at least 24");
  EXPECT_EQ(
      backend_
          ->Activate(
              {.x = data.data(), .y = data.data(), .rows = 1, .width = 4, .dtype = DType::kFloat16})
          .message(),
      "Activate.dtype is float16; expected float32");
  EXPECT_EQ(backend_->AddScaled({.count = 4}).message(), "AddScaled.x is null; expected an array");
  EXPECT_EQ(backend_
                ->AdjustLogits(
                    {.logits = data.data(), .rows = 1, .width = 4, .stride = 4, .soft_cap = -1.0f})
                .message(),
            "AdjustLogits.soft_cap is -1; expected 0 (off) or more");
}

INSTANTIATE_TEST_SUITE_P(Isa, LayersTest, testing::ValuesIn(AllBackendCases()), BackendCaseName);

}  // namespace
}  // namespace pagoda::kernels
