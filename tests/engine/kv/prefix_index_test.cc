#include "engine/kv/prefix_index.h"

#include <vector>

#include <gtest/gtest.h>

namespace pagoda::engine {
namespace {

constexpr BlockHash kParent = {.low = 1, .high = 2};
constexpr BlockHash kHash = {.low = 3, .high = 4};
const std::vector<TokenId> kTokens = {10, 11};

TEST(PrefixIndexTest, FindsByHashParentAndTokens) {
  PrefixIndex index(4, 2);
  index.Insert(BlockId(2), {.hash = kHash, .parent = kParent, .tokens = kTokens});
  EXPECT_EQ(index.Find({.hash = kHash, .parent = kParent, .tokens = kTokens}), BlockId(2));
  // A collision of hashes is no hit.
  const std::vector<TokenId> other = {10, 12};
  EXPECT_FALSE(index.Find({.hash = kHash, .parent = kParent, .tokens = other}).has_value());
  EXPECT_FALSE(index.Find({.hash = kHash, .parent = kHash, .tokens = kTokens}).has_value());
  EXPECT_FALSE(index.Find({.hash = kParent, .parent = kParent, .tokens = kTokens}).has_value());
}

TEST(PrefixIndexTest, KeepsDuplicatesAndCollisionsApart) {
  PrefixIndex index(8, 2);
  const std::vector<TokenId> other = {7, 7};
  const PrefixIndex::Content content = {.hash = kHash, .parent = kParent, .tokens = kTokens};
  const PrefixIndex::Content collision = {.hash = kHash, .parent = kParent, .tokens = other};
  for (uint32_t block : {0u, 1u, 2u}) index.Insert(BlockId(block), content);
  index.Insert(BlockId(3), collision);
  EXPECT_EQ(index.Find(collision), BlockId(3));
  EXPECT_TRUE(index.HasDuplicate(BlockId(1)));
  index.Erase(BlockId(3));
  index.Erase(BlockId(1));
  EXPECT_FALSE(index.Find(collision).has_value());
  ASSERT_TRUE(index.Find(content).has_value());
  index.Erase(BlockId(2));
  EXPECT_FALSE(index.HasDuplicate(BlockId(0)));
  EXPECT_EQ(index.Find(content), BlockId(0));
  index.Erase(BlockId(0));
  EXPECT_FALSE(index.Find(content).has_value());
  EXPECT_EQ(index.size(), 0u);
}

}  // namespace
}  // namespace pagoda::engine
