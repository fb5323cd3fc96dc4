#include "daemon/server/byte_budget.h"

#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

TEST(ByteBudgetTest, GivesNoMoreThanThereIs) {
  ByteBudget budget(10);
  EXPECT_TRUE(budget.Take(4));
  EXPECT_FALSE(budget.Take(7));
  EXPECT_FALSE(budget.Take(SIZE_MAX));
  EXPECT_TRUE(budget.Take(6));
  EXPECT_TRUE(budget.Take(0));
  EXPECT_FALSE(budget.Take(1));
  budget.Give(3);
  EXPECT_TRUE(budget.Take(3));
}

TEST(ByteBudgetTest, ThreadsTogetherToo) {
  ByteBudget budget(5);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&budget] {
      for (int i = 0; i < 10'000; ++i) {
        if (budget.Take(3)) budget.Give(3);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(budget.Take(5));
  EXPECT_FALSE(budget.Take(1));
}

}  // namespace
}  // namespace pagoda::daemon
