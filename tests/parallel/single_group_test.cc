#include "parallel/single_group.h"

#include <cstring>

#include "gtest/gtest.h"

namespace pagoda::parallel {
namespace {

std::unique_ptr<ProcessGroup> HostGroup() {
  return MakeSingleGroup([](void* to, const void* from, size_t num_bytes) {
    std::memcpy(to, from, num_bytes);
    return absl::OkStatus();
  });
}

TEST(SingleGroupTest, CollectivesOfOneRank) {
  const auto group = HostGroup();
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->num_ranks(), 1);
  float data[2] = {1.5f, -2.0f};
  EXPECT_TRUE(group->AllReduceSum(data, DType::kFloat32, 2).ok());
  EXPECT_EQ(data[0], 1.5f);
  float gathered[2] = {};
  EXPECT_TRUE(group->AllGather(data, gathered, sizeof data).ok());
  EXPECT_EQ(gathered[1], -2.0f);
  EXPECT_TRUE(group->AllGather(data, data, sizeof data).ok());
  EXPECT_TRUE(group->Broadcast(data, sizeof data, 0).ok());
}

TEST(SingleGroupTest, RefusesWhatCannotBe) {
  const auto group = HostGroup();
  int32_t ids[1] = {1};
  EXPECT_EQ(group->AllReduceSum(ids, DType::kInt32, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(group->Broadcast(ids, 4, 1).code(), absl::StatusCode::kInvalidArgument);
}

TEST(SingleGroupTest, AbortIsFinal) {
  const auto group = HostGroup();
  group->Abort();
  float data[1] = {1.0f};
  EXPECT_EQ(group->AllReduceSum(data, DType::kFloat32, 1).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(group->AllGather(data, data, 4).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(group->Broadcast(data, 4, 0).code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace pagoda::parallel
