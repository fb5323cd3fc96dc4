#include "kernels/cuda/collective/collective_plan.h"

#include <cstdint>
#include <set>
#include <utility>

#include "gtest/gtest.h"

namespace pagoda::kernels::cuda {
namespace {

TEST(CollectivePlan, SmallMessagesTakeOneTripLargeOnesTwo) {
  EXPECT_EQ(ChooseShots(2, 4 << 20), Shots::kOne);
  for (int ranks = 3; ranks <= kMaxRanks; ++ranks) {
    EXPECT_EQ(ChooseShots(ranks, 8 << 10), Shots::kOne) << ranks;
    EXPECT_EQ(ChooseShots(ranks, 1 << 20), Shots::kTwo) << ranks;
  }
}

// No two vectors of one owner share a place, and all places are within the layout.
TEST(CollectivePlan, PartsOfAnOwnerDoNotOverlap) {
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    for (const int64_t vectors : {1, 31, 32, 33, 257, 4096, 5003}) {
      const ReduceLayout layout = LayOutReduce(Shots::kTwo, ranks, vectors);
      std::set<std::pair<int, int64_t>> seen;
      for (int64_t v = 0; v < vectors; ++v) {
        const int64_t place = PlaceInPart(v, ranks);
        EXPECT_LT(place, layout.vectors_per_sender);
        EXPECT_TRUE(seen.emplace(OwnerOf(v, ranks), place).second) << ranks << " " << v;
      }
      EXPECT_EQ(layout.first_sum, ranks * layout.vectors_per_sender);
      EXPECT_EQ(layout.num_vectors, layout.first_sum + vectors);
    }
  }
}

TEST(CollectivePlan, WhatALaunchMayReduceFitsTheSlots) {
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    const RegionLayout region = LayOutRegion(ranks);
    for (const Shots shots : {Shots::kOne, Shots::kTwo}) {
      const int64_t most = MaxReduceVectors(shots, ranks);
      EXPECT_GE(most, kMaxRowVectors) << ranks;
      EXPECT_LE(static_cast<size_t>(LayOutReduce(shots, ranks, most).num_vectors) * kVectorBytes,
                region.reduce_parity_bytes)
          << ranks;
    }
    EXPECT_EQ(region.reduce_parity_bytes % kVectorBytes, 0u);
    EXPECT_LE(region.total_bytes, size_t{64} << 20) << ranks;
  }
}

TEST(CollectivePlan, BlocksOfAllRanksOnADeviceRunAtOnce) {
  constexpr int kSms = 132;
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    for (int shared = 1; shared <= ranks; ++shared) {
      for (const int64_t vectors : {1, 100, 4096, 100000, 524288}) {
        const ReduceGrid grid = PlanReduce(ranks, vectors, kSms, shared);
        EXPECT_GE(grid.num_blocks, 1);
        EXPECT_LE(grid.num_blocks, kMaxReduceBlocks);
        const int threads = kSms * kMaxReduceThreads * ReduceBlocksPerSm(ranks, false);
        EXPECT_LE(grid.num_blocks * grid.num_threads * shared, threads);
      }
      for (const int64_t row : {1, 8, 512, 513, 1024, 1025, 2048}) {
        const ReduceGrid grid = PlanReduceNorm(ranks, 3000, row, kSms, shared);
        EXPECT_GE(int64_t{grid.num_threads} * grid.vectors_per_thread, row);
        EXPECT_EQ(grid.num_threads % 32, 0);
        EXPECT_LE(grid.num_threads, kMaxReduceThreads);
        EXPECT_LE(grid.num_blocks * grid.num_threads * shared, kSms * kMaxReduceThreads);
      }
    }
  }
}

}  // namespace
}  // namespace pagoda::kernels::cuda
