#include "kernels/base/log_limit.h"

#include "gtest/gtest.h"

namespace pagoda {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(LogLimitTest, ABurstThenARateAndWhatWasLeftOutIsTold) {
  LogLimit limit({.per_second = 2, .burst = 3});
  uint64_t num_left_out = 77;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(limit.Take(kSecond, &num_left_out));
    EXPECT_EQ(num_left_out, 0u);
  }
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(limit.Take(kSecond, &num_left_out));
  EXPECT_TRUE(limit.Take(kSecond * 3 / 2, &num_left_out));
  EXPECT_EQ(num_left_out, 5u);
  EXPECT_FALSE(limit.Take(kSecond * 3 / 2, &num_left_out));
  // No more than a burst is saved up; a clock that stands still gives nothing.
  int num_taken = 0;
  for (int i = 0; i < 10; ++i) num_taken += limit.Take(100 * kSecond, &num_left_out) ? 1 : 0;
  EXPECT_EQ(num_taken, 3);
}

}  // namespace
}  // namespace pagoda
