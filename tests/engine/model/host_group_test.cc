#include "engine/model/host_group.h"

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/clock.h"
#include "parallel/shm_group.h"

namespace pagoda::engine {
namespace {

constexpr int kNumRanks = 3;

// Runs `fn(group)` on every rank.
template <typename Fn>
void OnEveryRank(const Fn& fn) {
  auto groups = parallel::MakeThreadGroups(kNumRanks);
  ASSERT_TRUE(groups.ok()) << groups.status();
  std::vector<std::thread> threads;
  for (auto& host : *groups) {
    threads.emplace_back([&fn, &host] {
      int64_t op_ns = 0;
      const int64_t start_ns = Clock::Monotonic().NowNs();
      fn(*MakeHostGroup(*host, &op_ns));
      EXPECT_GE(op_ns, 0);
      EXPECT_LE(op_ns, Clock::Monotonic().NowNs() - start_ns);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(HostGroupTest, SumsIntoAnotherArray) {
  OnEveryRank([](kernels::DeviceGroup& group) {
    const float own = static_cast<float>(group.rank() + 1);
    const std::vector<float> x = {own, 10 * own};
    std::vector<float> y(2);
    ASSERT_TRUE(group.AllReduceSum({.x = x.data(), .y = y.data(), .count = 2}).ok());
    EXPECT_EQ(y, (std::vector<float>{6, 60}));
    EXPECT_EQ(x[0], own);
    ASSERT_TRUE(group.AllReduceSum({.x = y.data(), .y = y.data(), .count = 2}).ok());
    EXPECT_EQ(y, (std::vector<float>{18, 180}));
  });
}

// Rows of 4 bytes a rank, side by side; of the last rank's, 3 are padding.
TEST(HostGroupTest, GathersRowsWithoutTheirPadding) {
  OnEveryRank([](kernels::DeviceGroup& group) {
    const char digit = static_cast<char>('0' + group.rank());
    std::string x;
    for (const char row : {'a', 'b'}) x += {row, digit, row, digit};
    std::string y(2 * 12, '.');
    ASSERT_TRUE(group
                    .AllGather({.x = x.data(),
                                .y = y.data(),
                                .rows = 2,
                                .row_bytes = 4,
                                .y_row_bytes = 9,
                                .y_stride_bytes = 12})
                    .ok());
    EXPECT_EQ(y, "a0a0a1a1a...b0b0b1b1b...");
  });
}

TEST(HostGroupTest, RefusesWhatItCannotDo) {
  OnEveryRank([](kernels::DeviceGroup& group) {
    EXPECT_FALSE(group.SupportsAllReduceNorm({}));
    EXPECT_EQ(group.AllReduceNorm({}).code(), absl::StatusCode::kUnimplemented);
    EXPECT_EQ(group.AllReduceSum({.count = 1}).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(group.Poll().ok());
    EXPECT_EQ(group.ranks_on_device(), 1);
  });
}

}  // namespace
}  // namespace pagoda::engine
