#include "kernels/ops/linear.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/normal.h"
#include "tests/kernels/backend_fixture.h"
#include "tests/reference/layers.h"

namespace pagoda::kernels {
namespace {

using ::testing::HasSubstr;

class LinearTest : public testing::TestWithParam<BackendCase> {
 protected:
  LinearTest() : backend_(OpenForTest(GetParam())) {}

  std::vector<float> Run(const LinearWeight& weight,
                         const std::vector<float>& x,
                         int64_t m,
                         const float* bias = nullptr) {
    std::vector<float> y(m * weight.n, NAN);
    const absl::Status status = backend_->Linear({.x = x.data(),
                                                  .weight = weight,
                                                  .bias = bias,
                                                  .y = y.data(),
                                                  .m = m,
                                                  .x_stride = weight.k,
                                                  .y_stride = weight.n});
    EXPECT_TRUE(status.ok()) << status;
    return y;
  }

  std::unique_ptr<Backend> backend_;
};

struct Shape {
  int64_t m, n, k;
};

TEST_P(LinearTest, MatchesReference) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const Shape s : {Shape{1, 1, 1},
                          Shape{1, 16, 2},
                          Shape{2, 17, 3},
                          Shape{3, 31, 33},
                          Shape{5, 100, 65},
                          Shape{8, 130, 64},
                          Shape{9, 48, 96},
                          Shape{17, 257, 31},
                          Shape{103, 70, 128}}) {
      SCOPED_TRACE(testing::Message()
                   << DTypeName(dtype) << " m " << s.m << " n " << s.n << " k " << s.k);
      std::vector<float> w = RandomFloats(s.n * s.k, 1);
      RoundAll(dtype, &w);
      const std::vector<float> x = RandomFloats(s.m * s.k, 2);
      const std::vector<float> bias = RandomFloats(s.n, 3);
      const PackedWeight packed = Pack(*backend_, w, s.n, s.k, dtype);
      const std::vector<float> y = Run(packed.weight, x, s.m, bias.data());
      for (int64_t i = 0; i < s.m; ++i) {
        std::vector<double> xi(x.begin() + i * s.k, x.begin() + (i + 1) * s.k);
        for (double& v : xi) v = RoundTo(dtype, static_cast<float>(v));
        const std::vector<double> expected = reference::Linear({w.begin(), w.end()}, xi);
        for (int64_t j = 0; j < s.n; ++j) {
          const double tolerance =
              4e-6 * std::sqrt(static_cast<double>(s.k)) * (1 + std::abs(expected[j]));
          ASSERT_NEAR(y[i * s.n + j], expected[j] + bias[j], tolerance)
              << "row " << i << " column " << j;
        }
      }
    }
  }
}

TEST_P(LinearTest, RowsAreTheSameBitsAloneAndTogether) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const int64_t n = 200, k = 101, m = 150;
    const PackedWeight packed = Pack(*backend_, RandomFloats(n * k, 1), n, k, dtype);
    const std::vector<float> x = RandomFloats(m * k, 2);
    const std::vector<float> together = Run(packed.weight, x, m);
    for (const int64_t chunk : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 64}) {
      std::vector<float> apart;
      for (int64_t row = 0; row < m; row += chunk) {
        const int64_t rows = std::min(chunk, m - row);
        const std::vector<float> y =
            Run(packed.weight, {x.begin() + row * k, x.begin() + (row + rows) * k}, rows);
        apart.insert(apart.end(), y.begin(), y.end());
      }
      EXPECT_TRUE(SameBits(together, apart)) << DTypeName(dtype) << " in chunks of " << chunk;
    }
  }
}

TEST_P(LinearTest, ThreadsDoNotChangeBits) {
  const int64_t n = 500, k = 64;
  std::unique_ptr<Backend> other = OpenForTest({GetParam().isa, 5});
  for (const int64_t m : {1, 8, 200}) {
    const std::vector<float> x = RandomFloats(m * k, 2);
    const PackedWeight packed = Pack(*backend_, RandomFloats(n * k, 1), n, k, DType::kBFloat16);
    const std::vector<float> y = Run(packed.weight, x, m);
    backend_.swap(other);
    EXPECT_TRUE(SameBits(y, Run(packed.weight, x, m)));
    backend_.swap(other);
  }
}

TEST_P(LinearTest, AddsTheResidualInPlaceAndRespectsStrides) {
  const int64_t n = 33, k = 20, m = 11, stride = 50;
  const std::vector<float> w = RandomFloats(n * k, 1);
  const PackedWeight packed = Pack(*backend_, w, n, k, DType::kFloat32);
  const std::vector<float> x = RandomFloats(m * stride, 2);
  const std::vector<float> before = RandomFloats(m * stride, 3);
  std::vector<float> y = before;
  ASSERT_TRUE(backend_
                  ->Linear({.x = x.data(),
                            .weight = packed.weight,
                            .residual = y.data(),
                            .y = y.data(),
                            .m = m,
                            .x_stride = stride,
                            .y_stride = stride})
                  .ok());
  for (int64_t i = 0; i < m; ++i) {
    const std::vector<double> expected = reference::Linear(
        {w.begin(), w.end()}, {x.begin() + i * stride, x.begin() + i * stride + k});
    for (int64_t j = 0; j < stride; ++j) {
      const double want = before[i * stride + j] + (j < n ? expected[j] : 0.0);
      ASSERT_NEAR(y[i * stride + j], want, j < n ? 1e-4 : 0.0);
    }
  }
}

TEST_P(LinearTest, PacksSeveralTensorsOfAnyTypeIntoOneWeight) {
  const int64_t k = 7;
  const std::vector<float> a = RandomFloats(5 * k, 1), c = RandomFloats(24 * k, 3);
  std::vector<Float16> b(13 * k);
  std::vector<float> all = a;
  const std::vector<float> b_values = RandomFloats(13 * k, 2);
  for (size_t i = 0; i < b.size(); ++i) {
    b[i] = Float16::FromFloat(b_values[i]);
    all.push_back(b[i].ToFloat());
  }
  std::vector<BFloat16> c_bits(c.size());
  for (size_t i = 0; i < c.size(); ++i) {
    c_bits[i] = BFloat16::FromFloat(c[i]);
    all.push_back(c_bits[i].ToFloat());
  }
  const int64_t n = 42;
  PackedWeight parts = Pack(*backend_, std::vector<float>(n * k, NAN), n, k, DType::kFloat32);
  const auto pack = [&](const void* source, DType dtype, int64_t rows, int64_t offset) {
    return backend_->PackLinear({.weight = parts.weight,
                                 .source = source,
                                 .source_dtype = dtype,
                                 .rows = rows,
                                 .row_offset = offset});
  };
  ASSERT_TRUE(pack(a.data(), DType::kFloat32, 5, 0).ok());
  ASSERT_TRUE(pack(b.data(), DType::kFloat16, 13, 5).ok());
  ASSERT_TRUE(pack(c_bits.data(), DType::kBFloat16, 24, 18).ok());
  const std::vector<float> x = RandomFloats(3 * k, 9);
  EXPECT_TRUE(SameBits(Run(parts.weight, x, 3),
                       Run(Pack(*backend_, all, n, k, DType::kFloat32).weight, x, 3)));
}

TEST_P(LinearTest, FillNormalIsAFunctionOfSeedAndPlace) {
  const int64_t n = 300, k = 129;
  PackedWeight whole = Pack(*backend_, std::vector<float>(n * k, 0), n, k, DType::kFloat32);
  ASSERT_TRUE(backend_->FillNormal({.weight = whole.weight, .stddev = 0.5f, .seed = 7}).ok());
  std::vector<int32_t> rows(n);
  for (int32_t i = 0; i < n; ++i) rows[i] = i;
  std::vector<float> values(n * k);
  ASSERT_TRUE(
      backend_
          ->Embedding({.tokens = rows.data(), .table = whole.weight, .y = values.data(), .rows = n})
          .ok());
  double sum = 0, squares = 0, fourth = 0;
  for (int64_t i = 0; i < n * k; ++i) {
    ASSERT_NEAR(values[i], 0.5f * NormalFromPhilox(7, i), 2e-6);
    sum += values[i];
    squares += values[i] * values[i];
    fourth += std::pow(values[i], 4);
  }
  const auto count = static_cast<double>(n * k);
  EXPECT_NEAR(sum / count, 0.0, 4 * 0.5 / std::sqrt(count));
  EXPECT_NEAR(squares / count, 0.25, 0.25 * 4 * std::sqrt(2 / count));
  EXPECT_NEAR(fourth / count / (squares / count * squares / count), 3.0, 0.15);

  // The last 100 rows as a part of their own, in another type.
  PackedWeight part = Pack(*backend_, std::vector<float>(100 * k, 0), 100, k, DType::kBFloat16);
  ASSERT_TRUE(backend_
                  ->FillNormal(
                      {.weight = part.weight, .stddev = 0.5f, .seed = 7, .element_offset = 200 * k})
                  .ok());
  std::vector<float> part_values(100 * k);
  ASSERT_TRUE(
      backend_
          ->Embedding(
              {.tokens = rows.data(), .table = part.weight, .y = part_values.data(), .rows = 100})
          .ok());
  for (int64_t i = 0; i < 100 * k; ++i) {
    ASSERT_EQ(part_values[i], RoundTo(DType::kBFloat16, values[200 * k + i]));
  }

  // Columns 40 to 79 of rows 17 to 56, in rows 3 to 42 of a weight; the others stay.
  PackedWeight block = Pack(*backend_, std::vector<float>(50 * 40, 9), 50, 40, DType::kFloat32);
  ASSERT_TRUE(backend_
                  ->FillNormal({.weight = block.weight,
                                .stddev = 0.5f,
                                .seed = 7,
                                .element_offset = 17 * k + 40,
                                .row_stride = k,
                                .row_offset = 3,
                                .rows = 40})
                  .ok());
  std::vector<float> block_values(50 * 40);
  ASSERT_TRUE(
      backend_
          ->Embedding(
              {.tokens = rows.data(), .table = block.weight, .y = block_values.data(), .rows = 50})
          .ok());
  for (int64_t row = 0; row < 50; ++row) {
    for (int64_t j = 0; j < 40; ++j) {
      const bool is_filled = row >= 3 && row < 43;
      ASSERT_EQ(block_values[row * 40 + j],
                is_filled ? values[(17 + row - 3) * k + 40 + j] : 9.0f);
    }
  }
}

TEST_P(LinearTest, RefusesWhatItCannotDo) {
  const PackedWeight packed = Pack(*backend_, RandomFloats(64, 1), 8, 8, DType::kFloat32);
  std::vector<float> x(8), y(8);
  const LinearParams good = {
      .x = x.data(), .weight = packed.weight, .y = y.data(), .m = 1, .x_stride = 8, .y_stride = 8};
  ASSERT_TRUE(backend_->Linear(good).ok());
  const auto message = [&](auto change) {
    LinearParams params = good;
    change(params);
    return std::string(backend_->Linear(params).message());
  };
  EXPECT_EQ(message([](LinearParams& p) { p.m = -3; }), "Linear.m is -3; expected at least 0");
  EXPECT_EQ(message([](LinearParams& p) { p.x_stride = 7; }),
            "Linear.x_stride is 7; expected at least 8");
  EXPECT_EQ(message([](LinearParams& p) { p.y = nullptr; }), "Linear.y is null; expected an array");
  EXPECT_EQ(message([](LinearParams& p) { p.y_dtype = DType::kBFloat16; }),
            "Linear.y_dtype is bfloat16; expected float32");
  EXPECT_EQ(message([](LinearParams& p) { p.weight.dtype = DType::kFloat16; }),
            "Linear.weight.dtype is float16; expected float32 or bfloat16");
  EXPECT_THAT(message([](LinearParams& p) { p.weight.format = WeightFormat::kRowMajor; }),
              HasSubstr("kPanel16"));
  EXPECT_EQ(
      backend_
          ->PackLinear({.weight = packed.weight, .source = x.data(), .rows = 4, .row_offset = 5})
          .message(),
      "PackLinear.row_offset + rows is 9; expected 0 to 8");
}

INSTANTIATE_TEST_SUITE_P(Isa, LinearTest, testing::ValuesIn(AllBackendCases()), BackendCaseName);

}  // namespace
}  // namespace pagoda::kernels
