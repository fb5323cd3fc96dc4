#include "engine/model/rope_config.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model/position_tables.h"

namespace pagoda::engine {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::FloatEq;

TEST(RopeConfigTest, FrequenciesOfEachKind) {
  RopeConfig rope;
  EXPECT_THAT(RopeFrequencies(rope, 4, 128), ElementsAre(1.0, testing::DoubleNear(0.01, 1e-15)));
  rope.kind = RopeConfig::Kind::kLinear;
  rope.factor = 4.0;
  EXPECT_THAT(RopeFrequencies(rope, 4, 128), ElementsAre(0.25, testing::DoubleNear(0.0025, 1e-15)));
  rope = {.kind = RopeConfig::Kind::kLlama3,
          .theta = 10000.0,
          .factor = 8.0,
          .low_freq_factor = 1.0,
          .high_freq_factor = 4.0,
          .original_max_position_embeddings = 64};
  // Wavelengths 6.28 (below 64 / 4: kept) and 628 (above 64: slowed).
  EXPECT_THAT(RopeFrequencies(rope, 4, 128), ElementsAre(1.0, testing::DoubleNear(0.00125, 1e-15)));
}

TEST(RopeConfigTest, DynamicHasTheBaseOfTheWholeContext) {
  RopeConfig rope = {.kind = RopeConfig::Kind::kDynamic,
                     .theta = 10000.0,
                     .factor = 2.0,
                     .original_max_position_embeddings = 64};
  // Within the original context nothing changes.
  EXPECT_THAT(RopeFrequencies(rope, 4, 64), ElementsAre(1.0, DoubleNear(0.01, 1e-15)));
  // theta * (2 * 128 / 64 - 1)^(4 / 2) = 90000.
  EXPECT_THAT(RopeFrequencies(rope, 4, 128), ElementsAre(1.0, DoubleNear(1.0 / 300.0, 1e-15)));
}

// Pairs 0 to 7 of theta 10000 over 64 positions: the ramp runs from pair 0 to pair 3.
TEST(RopeConfigTest, YarnKeepsFastPairsAndDividesSlowOnes) {
  const RopeConfig rope = {.kind = RopeConfig::Kind::kYarn,
                           .theta = 10000.0,
                           .factor = 4.0,
                           .beta_fast = 32.0,
                           .beta_slow = 1.0,
                           .original_max_position_embeddings = 64};
  const std::vector<double> plain = RopeFrequencies({}, 16, 64);
  const std::vector<double> yarn = RopeFrequencies(rope, 16, 64);
  ASSERT_EQ(yarn.size(), 8u);
  // 16 ln(64 / 2 pi) / (2 ln 10000) = 2.02, rounded up: 3. That of 32 turns is below 0.
  for (size_t i = 0; i < yarn.size(); ++i) {
    const double ramp = std::min(static_cast<double>(i) / 3.0, 1.0);
    EXPECT_NEAR(yarn[i], plain[i] * (ramp / 4.0 + 1.0 - ramp), 1e-15) << i;
  }
}

TEST(RopeConfigTest, LongRopeChoosesItsFactorsByTheContext) {
  const RopeConfig rope = {.kind = RopeConfig::Kind::kLongRope,
                           .theta = 10000.0,
                           .original_max_position_embeddings = 64,
                           .short_factors = {1.0, 2.0},
                           .long_factors = {4.0, 8.0}};
  EXPECT_THAT(RopeFrequencies(rope, 4, 64), ElementsAre(1.0, DoubleNear(0.005, 1e-15)));
  EXPECT_THAT(RopeFrequencies(rope, 4, 65), ElementsAre(0.25, DoubleNear(0.00125, 1e-15)));
}

TEST(AlibiSlopesTest, PowersOfTwo) {
  EXPECT_THAT(AlibiSlopes(2, 8.0f), ElementsAre(FloatEq(1.0f / 16), FloatEq(1.0f / 256)));
  // Three heads: the second and fourth of four slopes, then the first.
  EXPECT_THAT(AlibiSlopes(3, 8.0f),
              ElementsAre(FloatEq(1.0f / 16), FloatEq(1.0f / 256), FloatEq(0.25f)));
}

}  // namespace
}  // namespace pagoda::engine
