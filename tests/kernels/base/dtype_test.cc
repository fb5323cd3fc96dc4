#include "kernels/base/dtype.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace pagoda {
namespace {

TEST(DTypeTest, NamesRoundTrip) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt32}) {
    EXPECT_EQ(*ParseDType(DTypeName(dtype)), dtype);
  }
  EXPECT_EQ(ParseDType("fp8").status().message(),
            "dtype 'fp8' is unknown; expected float32, bfloat16 or float16");
}

// The nearest of the two neighbours in the narrow type, by brute force in double.
template <typename T>
void CheckNearest(float value) {
  const T rounded = T::FromFloat(value);
  const double error =
      std::abs(static_cast<double>(rounded.ToFloat()) - static_cast<double>(value));
  for (const int step : {-1, 1}) {
    const T neighbour = {static_cast<uint16_t>(rounded.bits + step)};
    const float other = neighbour.ToFloat();
    if (!std::isfinite(other) || !std::isfinite(rounded.ToFloat())) continue;
    const double other_error = std::abs(static_cast<double>(other) - static_cast<double>(value));
    EXPECT_LE(error, other_error) << value;
    if (error == other_error) {
      EXPECT_EQ(rounded.bits % 2, 0) << value << " is a tie: even wins";
    }
  }
}

TEST(DTypeTest, EveryHalfAndBrainFloatSurvives) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const BFloat16 b = {static_cast<uint16_t>(bits)};
    const Float16 h = {static_cast<uint16_t>(bits)};
    if (!std::isnan(b.ToFloat())) {
      EXPECT_EQ(BFloat16::FromFloat(b.ToFloat()).bits, b.bits);
    }
    if (!std::isnan(h.ToFloat())) {
      EXPECT_EQ(Float16::FromFloat(h.ToFloat()).bits, h.bits);
    }
  }
}

TEST(DTypeTest, RoundsToNearestEven) {
  uint32_t state = 12345;
  for (int i = 0; i < 20000; ++i) {
    state = state * 1664525 + 1013904223;
    const float value = std::bit_cast<float>((state & 0x807fffffu) | ((100 + state % 40) << 23));
    CheckNearest<BFloat16>(value);
    if (std::abs(value) < 60000) CheckNearest<Float16>(value);
  }
}

TEST(DTypeTest, SpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isnan(BFloat16::FromFloat(NAN).ToFloat()));
  EXPECT_TRUE(std::isnan(Float16::FromFloat(NAN).ToFloat()));
  EXPECT_EQ(BFloat16::FromFloat(std::numeric_limits<float>::max()).ToFloat(), infinity);
  EXPECT_EQ(Float16::FromFloat(65520.0f).ToFloat(), infinity);
  EXPECT_EQ(Float16::FromFloat(65519.0f).ToFloat(), 65504.0f);
  EXPECT_EQ(Float16::FromFloat(-infinity).ToFloat(), -infinity);
  EXPECT_EQ(Float16::FromFloat(-0.0f).bits, 0x8000);
  EXPECT_EQ(Float16::FromFloat(0x1p-25f).bits, 0);  // a tie with zero
  EXPECT_EQ(Float16::FromFloat(0x1.8p-25f).bits, 1);
}

}  // namespace
}  // namespace pagoda
