#include "engine/kv/prefix_index.h"

#include <string>
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

using Kind = BlockEvent::Kind;

// "+3<1" (stored after 1), "-3" (removed), "0" (cleared).
std::string Told(BlockEvents* events) {
  std::string text;
  for (const BlockEvent& event : events->events) {
    if (event.kind == Kind::kCleared) text += "0 ";
    if (event.kind == Kind::kRemoved) text += "-" + std::to_string(event.hash) + " ";
    if (event.kind != Kind::kStored) continue;
    text += "+" + std::to_string(event.hash);
    if (event.has_parent) text += "<" + std::to_string(event.parent);
    text += " ";
  }
  events->events.clear();
  return text;
}

TEST(PrefixIndexTest, TellsOfContentsNotOfBlocks) {
  PrefixIndex index(16, 2);
  const PrefixIndex::Content first = {
      .hash = kHash, .parent = kParent, .tokens = kTokens, .is_first = true};
  const PrefixIndex::Content second = {
      .hash = {.low = 5, .high = 9}, .parent = kHash, .tokens = kTokens};
  const PrefixIndex::Content secret = {
      .hash = {.low = 6, .high = 9}, .parent = kParent, .tokens = kTokens, .is_secret = true};
  index.Insert(BlockId(0), first);  // nobody listens
  index.Settle();
  BlockEvents events;
  index.set_events(&events);
  index.Insert(BlockId(1), first);  // can be found already
  index.Insert(BlockId(2), second);
  index.Insert(BlockId(3), secret);
  EXPECT_EQ(Told(&events), "");  // put off
  index.Settle();
  EXPECT_EQ(Told(&events), "+5<3 ");
  EXPECT_EQ(events.tokens, kTokens);
  index.AppendAll(&events);
  const std::string all = Told(&events);
  EXPECT_TRUE(all == "+3 +5<3 " || all == "+5<3 +3 ") << all;
  index.Erase(BlockId(0));
  EXPECT_EQ(Told(&events), "");  // can still be found
  index.Erase(BlockId(1));
  index.Erase(BlockId(3));
  EXPECT_EQ(Told(&events), "-3 ");
  index.set_events(nullptr);
  index.Erase(BlockId(2));
  EXPECT_EQ(Told(&events), "");
}

}  // namespace
}  // namespace pagoda::engine
