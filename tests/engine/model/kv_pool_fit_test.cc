#include "engine/model/kv_pool_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/device_fault.h"

namespace pagoda::engine {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = 1024 * kMiB;

TEST(KvPoolFitTest, GraphsToComeStayFree) {
  MeasuredMemory memory = {.graph_bytes = 4 * kMiB, .num_graphs = 50};
  const uint64_t kept = KeptFreeBytes(memory);
  EXPECT_GE(kept, 200 * kMiB);
  EXPECT_LE(kept, 300 * kMiB);
  memory.num_graphs = 51;
  EXPECT_EQ(KeptFreeBytes(memory), kept + 4 * kMiB);
  // One that seemed to take nothing is not free of charge.
  memory.graph_bytes = 0;
  EXPECT_GE(KeptFreeBytes(memory), 51 * kMiB);
}

TEST(KvPoolFitTest, MemoryThatAnotherProcessTookMeanwhileIsNotAGraph) {
  const MeasuredMemory memory = {.graph_bytes = 5 * kGiB, .num_graphs = 72};
  EXPECT_LE(KeptFreeBytes(memory), 2 * kGiB);
}

TEST(KvPoolFitTest, NoMoreThanIsFree) {
  const MeasuredMemory memory = {.total_bytes = 100 * kGiB,
                                 .free_at_first_bytes = 60 * kGiB,
                                 .free_bytes = 50 * kGiB,
                                 .utilization = 0.9};
  EXPECT_EQ(KvPoolBytesThatFit(memory), 50 * kGiB - KeptFreeBytes(memory));
}

TEST(KvPoolFitTest, NoMoreThanTheShareOfTheWholeMemory) {
  MeasuredMemory memory = {.total_bytes = 100 * kGiB,
                           .free_at_first_bytes = 99 * kGiB,
                           .free_bytes = 79 * kGiB,
                           .utilization = 0.5};
  // 20 GiB of 50 are taken.
  EXPECT_EQ(KvPoolBytesThatFit(memory), 30 * kGiB - KeptFreeBytes(memory));
  memory.utilization = 0.2;
  EXPECT_EQ(KvPoolBytesThatFit(memory), 0);
}

// Two ranks have taken 20 GiB of the 50 that they may take; each gets half of the rest.
TEST(KvPoolFitTest, RanksThatShareADevice) {
  MeasuredMemory memory = {.total_bytes = 100 * kGiB,
                           .free_at_first_bytes = 99 * kGiB,
                           .free_bytes = 79 * kGiB,
                           .graph_bytes = 0,
                           .num_graphs = 10,
                           .utilization = 0.5,
                           .num_sharing = 2};
  const uint64_t fits = KvPoolBytesThatFit(memory);
  EXPECT_EQ(fits, 15 * kGiB - KeptFreeBytes(memory));
  // What another has taken at the same time changes nothing.
  memory.graph_bytes = kGiB;
  EXPECT_EQ(KvPoolBytesThatFit(memory), fits);
  memory.slack_bytes = kMiB;
  EXPECT_EQ(KvPoolBytesThatFit(memory), fits - kMiB);
}

TEST(KvPoolFitTest, NothingFits) {
  const MeasuredMemory memory = {
      .total_bytes = 8 * kGiB, .free_at_first_bytes = kMiB, .free_bytes = kMiB};
  EXPECT_EQ(KvPoolBytesThatFit(memory), 0);
  const absl::Status status = NoKvBlockFits(4096, memory);
  EXPECT_EQ(DeviceFaultOf(status), DeviceFault::kNoMemory);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no KV block of 4096 bytes fits"));
}

}  // namespace
}  // namespace pagoda::engine
