#include "engine/quarantine.h"

#include <vector>

#include "gtest/gtest.h"

namespace pagoda::engine {
namespace {

TEST(QuarantineTest, HoldsAPromptForItsTime) {
  const BlockHasher hasher("key");
  Quarantine quarantine(&hasher);
  const std::vector<TokenId> prompt = {1, 2, 3};
  EXPECT_FALSE(quarantine.Holds(prompt, 0));
  quarantine.Add(prompt, 1000);
  EXPECT_TRUE(quarantine.Holds(prompt, 1000));
  EXPECT_TRUE(quarantine.Holds(prompt, 1000 + Quarantine::kDurationNs - 1));
  EXPECT_FALSE(quarantine.Holds(prompt, 1000 + Quarantine::kDurationNs));
  EXPECT_FALSE(quarantine.Holds(std::vector<TokenId>{1, 2}, 1000));
  EXPECT_FALSE(quarantine.Holds(std::vector<TokenId>{1, 2, 4}, 1000));
}

TEST(QuarantineTest, IsBounded) {
  const BlockHasher hasher("key");
  Quarantine quarantine(&hasher);
  for (TokenId id = 0; id < 1000; ++id) quarantine.Add(std::vector<TokenId>{id}, id);
  EXPECT_FALSE(quarantine.Holds(std::vector<TokenId>{0}, 1000));
  EXPECT_TRUE(quarantine.Holds(std::vector<TokenId>{999}, 1000));
}

}  // namespace
}  // namespace pagoda::engine
