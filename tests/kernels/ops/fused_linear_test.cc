#include "kernels/ops/fused_linear.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::kernels {
namespace {

using ::testing::HasSubstr;

// A product of two rows with eight columns, which are a query head, a key and a value of two.
class FusedLinearParamsTest : public testing::Test {
 protected:
  FusedLinearParamsTest() {
    batch_ = {.num_rows = 2, .positions = integers_, .kv_slots = integers_};
    rope_ = {.qkv = y_,
             .qkv_stride = 8,
             .cos_sin = x_,
             .max_positions = 4,
             .rotary_dim = 2,
             .num_q_heads = 2,
             .batch = &batch_,
             .cache = {.data = y_,
                       .dtype = DType::kFloat32,
                       .num_blocks = 1,
                       .block_size = 1,
                       .num_kv_heads = 1,
                       .head_dim = 2,
                       .block_stride = 4,
                       .v_offset = 2,
                       .head_stride = 2}};
    params_.linear = {.x = x_,
                      .weight = {.dtype = DType::kFloat32, .data = x_, .n = 8, .k = 4},
                      .y = y_,
                      .m = 2,
                      .x_stride = 4,
                      .y_stride = 8};
  }

  std::string Message() const { return std::string(Validate(params_).message()); }

  float x_[64] = {}, y_[64] = {};
  int32_t integers_[4] = {};
  AttentionBatch batch_;
  RopeKvWriteParams rope_;
  FusedLinearParams params_;
};

TEST_F(FusedLinearParamsTest, GoodParamsPass) {
  EXPECT_TRUE(Validate(params_).ok()) << Validate(params_);
  params_.rope = &rope_;
  EXPECT_TRUE(Validate(params_).ok()) << Validate(params_);
  params_.rope = nullptr;
  params_.silu_mul = true;
  params_.linear.y_stride = 4;
  EXPECT_TRUE(Validate(params_).ok()) << Validate(params_);
}

TEST_F(FusedLinearParamsTest, WhatCannotBeIsNamed) {
  params_.silu_mul = true;
  params_.linear.y_stride = 3;
  EXPECT_EQ(Message(), "FusedLinear.linear.y_stride is 3; expected at least 4");
  params_.linear.y_stride = 4;
  params_.linear.residual = y_;
  EXPECT_THAT(Message(), HasSubstr("residual"));
  params_.linear.residual = nullptr;
  params_.rope = &rope_;
  EXPECT_THAT(Message(), HasSubstr("silu_mul and rope"));
}

TEST_F(FusedLinearParamsTest, RopeMustBeOfTheProduct) {
  params_.rope = &rope_;
  rope_.qkv = x_;
  EXPECT_THAT(Message(), HasSubstr("rope.qkv"));
  rope_.qkv = y_;
  params_.linear.m = 1;
  EXPECT_THAT(Message(), HasSubstr("FusedLinear.rope.batch.num_rows is 2"));
  params_.linear.m = 2;
  params_.linear.weight.n = 10;
  params_.linear.y_stride = 10;
  rope_.qkv_stride = 10;
  EXPECT_THAT(Message(), HasSubstr("FusedLinear.linear.weight.n is 10"));
}

}  // namespace
}  // namespace pagoda::kernels
