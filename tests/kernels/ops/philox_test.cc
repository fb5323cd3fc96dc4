#include "kernels/ops/philox.h"

#include "gtest/gtest.h"

namespace pagoda::kernels {
namespace {

// The known answers of the paper's library (Random123, kat_vectors, philox4x32 10 and 7).
TEST(PhiloxTest, KnownAnswers) {
  const auto expect = [](const PhiloxBlock& block, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    EXPECT_EQ(block.word[0], a);
    EXPECT_EQ(block.word[1], b);
    EXPECT_EQ(block.word[2], c);
    EXPECT_EQ(block.word[3], d);
  };
  expect(Philox4x32(0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  expect(Philox4x32(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}),
         0x408f276d,
         0x41c83b0e,
         0xa20bc7c6,
         0x6d5451fd);
  expect(Philox4x32(0x299f31d0a4093822u, 0x85a308d3243f6a88u, 0x0370734413198a2eu),
         0xd16cfe09,
         0x94fdcceb,
         0x5001e420,
         0x24126ea1);
  expect(Philox4x32<7>(0, 0, 0), 0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48);
  expect(Philox4x32<7>(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}),
         0x5207ddc2,
         0x45165e59,
         0x4d8ee751,
         0x8c52f662);
  expect(Philox4x32<7>(0x299f31d0a4093822u, 0x85a308d3243f6a88u, 0x0370734413198a2eu),
         0x4dfccaba,
         0x190a87f0,
         0xc47362ba,
         0xb6b5242a);
}

TEST(PhiloxTest, UniformsAreInsideTheOpenInterval) {
  EXPECT_EQ(UniformFromBits(0), 0x1p-24f);
  EXPECT_EQ(UniformFromBits(~0u), 1.0f - 0x1p-24f);
}

}  // namespace
}  // namespace pagoda::kernels
