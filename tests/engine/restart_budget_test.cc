#include "engine/restart_budget.h"

#include "gtest/gtest.h"

namespace pagoda::engine {
namespace {

TEST(RestartBudgetTest, AllowsSoManyWithinTheWindow) {
  RestartBudget budget(3, 1000);
  EXPECT_TRUE(budget.Take(100));
  EXPECT_TRUE(budget.Take(200));
  EXPECT_TRUE(budget.Take(1099));
  EXPECT_FALSE(budget.Take(1099));
  // The first is a window ago.
  EXPECT_TRUE(budget.Take(1100));
  EXPECT_FALSE(budget.Take(1199));
  EXPECT_EQ(budget.num_taken(), 3u);
}

TEST(RestartBudgetTest, NoneIsNone) {
  RestartBudget budget(0, 1000);
  EXPECT_FALSE(budget.Take(100));
}

TEST(RestartBudgetTest, ForgivesTheLastOnes) {
  RestartBudget budget(2, 1000);
  EXPECT_TRUE(budget.Take(1));
  EXPECT_TRUE(budget.Take(2));
  budget.Forgive(1);
  EXPECT_TRUE(budget.Take(3));
  EXPECT_FALSE(budget.Take(3));
  budget.Forgive(100);
  EXPECT_EQ(budget.num_taken(), 0u);
}

}  // namespace
}  // namespace pagoda::engine
