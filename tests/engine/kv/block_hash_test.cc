#include "engine/kv/block_hash.h"

#include <vector>

#include <gtest/gtest.h>

namespace pagoda::engine {
namespace {

TEST(BlockHashTest, EqualKeysGiveEqualHashesAndOthersDoNot) {
  const std::vector<TokenId> tokens = {1, 2, 3, 4};
  const BlockHasher a("key"), b("key"), c("other");
  const BlockHash root = a.Root({.salt = "tenant"});
  EXPECT_EQ(root, b.Root({.salt = "tenant"}));
  EXPECT_EQ(a.Chain(root, tokens), b.Chain(root, tokens));
  EXPECT_FALSE(root == c.Root({.salt = "tenant"}));
  EXPECT_FALSE(a.Chain(root, tokens) == c.Chain(root, tokens));
}

// The scope's parts are tagged by length: moving a byte from one to the next is another scope.
TEST(BlockHashTest, B066_EveryPartOfTheScopeCounts) {
  const BlockHasher hasher("key");
  const std::vector<BlockHash> roots = {
      hasher.Root({}),
      hasher.Root({.model_generation = 1}),
      hasher.Root({.adapter_generation = 1}),
      hasher.Root({.salt = "ab", .extra = "c"}),
      hasher.Root({.salt = "a", .extra = "bc"}),
      hasher.Root({.salt = "abc"}),
      hasher.Root({.tenant = "abc"}),
      hasher.Root({.tenant = "ab", .salt = "c"}),
      hasher.Root({.tenant = "a", .salt = "bc"}),
      hasher.Root({.extra = "abc"}),
  };
  for (size_t i = 0; i < roots.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(roots[i] == roots[j]) << i << " " << j;
  }
}

TEST(BlockHashTest, DependsOnParentAndTokensAndEventIdIsPositive) {
  const BlockHasher hasher("");
  const std::vector<TokenId> tokens = {1, 2}, other = {2, 1};
  const BlockHash root = hasher.Root({});
  const BlockHash first = hasher.Chain(root, tokens);
  EXPECT_FALSE(first == hasher.Chain(root, other));
  EXPECT_FALSE(first == hasher.Chain(first, tokens));
  EXPECT_EQ(first.EventId() >> 63, 0u);
  // Longer than any inline buffer.
  const std::vector<TokenId> long_block(1000, 7);
  EXPECT_FALSE(hasher.Chain(root, long_block) == hasher.Chain(first, long_block));
}

}  // namespace
}  // namespace pagoda::engine
