#include "kernels/ops/collective.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::kernels {
namespace {

using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(Collective, AllReduceRefusesIntegersAndMissingArrays) {
  int data = 0;
  EXPECT_TRUE(Validate(AllReduceParams{.count = 0}).ok());
  EXPECT_THAT(Message(Validate(
                  AllReduceParams{.x = &data, .y = &data, .count = 1, .dtype = DType::kInt32})),
              HasSubstr("AllReduce.dtype is int32"));
  EXPECT_THAT(Message(Validate(AllReduceParams{.y = &data, .count = 1})),
              HasSubstr("AllReduce.x is null"));
  EXPECT_THAT(Message(Validate(AllReduceParams{.x = &data, .y = &data, .count = -1})),
              HasSubstr("AllReduce.count is -1"));
}

TEST(Collective, AllReduceNormNeedsNoResidual) {
  float data = 0;
  AllReduceNormParams params = {
      .x = &data, .sum = &data, .weight = &data, .y = &data, .rows = 1, .width = 1};
  EXPECT_TRUE(Validate(params).ok());
  params.width = 0;
  EXPECT_THAT(Message(Validate(params)), HasSubstr("AllReduceNorm.width is 0"));
  params.width = 1;
  params.weight = nullptr;
  EXPECT_THAT(Message(Validate(params)), HasSubstr("AllReduceNorm.weight is null"));
}

TEST(Collective, AllGatherMayLeaveOutPadding) {
  char data = 0;
  AllGatherParams params = {
      .x = &data, .y = &data, .rows = 2, .row_bytes = 8, .y_row_bytes = 15, .y_stride_bytes = 16};
  EXPECT_TRUE(Validate(params, 2).ok());
  params.y_row_bytes = 17;
  EXPECT_THAT(Message(Validate(params, 2)), HasSubstr("AllGather.y_row_bytes is 17"));
  params.y_row_bytes = 16;
  params.y_stride_bytes = 15;
  EXPECT_THAT(Message(Validate(params, 2)), HasSubstr("AllGather.y_stride_bytes is 15"));
}

TEST(Collective, BroadcastNeedsARootOfTheGroup) {
  char data = 0;
  EXPECT_TRUE(Validate(BroadcastParams{.data = &data, .size_bytes = 1, .root = 1}, 2).ok());
  EXPECT_THAT(Message(Validate(BroadcastParams{.data = &data, .size_bytes = 1, .root = 2}, 2)),
              HasSubstr("Broadcast.root is 2"));
}

}  // namespace
}  // namespace pagoda::kernels
