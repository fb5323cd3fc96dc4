#include "engine/kv/block_pool.h"

#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace pagoda::engine {
namespace {

constexpr BlockHash kRoot = {.low = 1, .high = 1};

PrefixIndex::Content ContentOf(const std::vector<TokenId>& tokens) {
  return {.hash = {.low = static_cast<uint64_t>(tokens[0]), .high = 0},
          .parent = kRoot,
          .tokens = tokens};
}

TEST(BlockPoolTest, TakesUncachedBlocksBeforeItEvicts) {
  BlockPool pool(3, 1);
  const std::vector<TokenId> tokens = {5};
  const BlockId cached = pool.Allocate();
  pool.Publish(cached, ContentOf(tokens));
  const BlockId plain = pool.Allocate();
  pool.Release(cached);
  pool.Release(plain);
  EXPECT_EQ(pool.num_cached(), 1u);
  EXPECT_EQ(pool.num_free(), 2u);
  EXPECT_EQ(pool.Allocate(), plain);
  pool.Allocate();
  EXPECT_EQ(pool.num_evictions(), 0u);
  EXPECT_EQ(pool.Find(ContentOf(tokens)), cached);
  EXPECT_EQ(pool.Allocate(), cached);
  EXPECT_EQ(pool.num_evictions(), 1u);
  EXPECT_FALSE(pool.Find(ContentOf(tokens)).has_value());
  EXPECT_EQ(pool.num_available(), 0u);
}

TEST(BlockPoolTest, EvictsTheTailOfAPrefixBeforeItsHead) {
  BlockPool pool(2, 1);
  const std::vector<TokenId> head = {1}, tail = {2};
  const BlockId first = pool.Allocate(), second = pool.Allocate();
  pool.Publish(first, ContentOf(head));
  pool.Publish(second, ContentOf(tail));
  pool.Release(second);
  pool.Release(first);
  pool.Allocate();
  EXPECT_TRUE(pool.Find(ContentOf(head)).has_value());
  EXPECT_FALSE(pool.Find(ContentOf(tail)).has_value());
}

TEST(BlockPoolTest, KeepsOneUnusedCopyOfAContent) {
  BlockPool pool(4, 1);
  const std::vector<TokenId> tokens = {1};
  const BlockId a = pool.Allocate(), b = pool.Allocate();
  pool.Publish(a, ContentOf(tokens));
  pool.Publish(b, ContentOf(tokens));
  pool.Release(a);
  EXPECT_EQ(pool.num_cached(), 0u);
  EXPECT_EQ(pool.Find(ContentOf(tokens)), b);
  pool.Release(b);
  EXPECT_EQ(pool.num_cached(), 1u);
}

TEST(BlockPoolTest, UnpublishDropsUsedAndCachedBlocks) {
  BlockPool pool(2, 1);
  const std::vector<TokenId> one = {1}, two = {2};
  const BlockId a = pool.Allocate(), b = pool.Allocate();
  pool.Publish(a, ContentOf(one));
  pool.Publish(b, ContentOf(two));
  pool.Release(b);
  pool.Unpublish(a);
  pool.Unpublish(b);
  pool.Unpublish(b);
  EXPECT_FALSE(pool.Find(ContentOf(one)).has_value());
  EXPECT_FALSE(pool.Find(ContentOf(two)).has_value());
  EXPECT_EQ(pool.num_cached(), 0u);
  pool.Release(a);
  EXPECT_EQ(pool.num_free(), 2u);
}

// Random use of 7 blocks against a model that is too simple to be wrong: what every block holds and
// who names it.
class BlockPoolModel {
 public:
  BlockPoolModel(uint32_t block_size, uint32_t seed)
      : block_size_(block_size), random_(seed), pool_(kNumBlocks, block_size) {}

  void Step() {
    const int action = random_() % 10;
    if (action < 4) {
      Append();
    } else if (action < 6) {
      Fork();
    } else if (action < 9) {
      Free();
    } else {
      Drop();
    }
    Check();
  }

 private:
  static constexpr uint32_t kNumBlocks = 7;
  // Few contents, so that duplicates, hits and evictions are common.
  static constexpr TokenId kNumContents = 5;
  struct ModelBlock {
    uint32_t references = 0;
    TokenId content = -1;  // -1: not to be found
  };

  std::vector<TokenId> Tokens(TokenId content) const {
    return std::vector<TokenId>(block_size_, content);
  }

  // A table grows: by a hit where there is one, else by a fresh block that is then filled.
  void Append() {
    const TokenId content = static_cast<TokenId>(random_() % kNumContents);
    const std::vector<TokenId> tokens = Tokens(content);
    const auto hit = pool_.Find(ContentOf(tokens));
    if (hit.has_value() && random_() % 2 == 0) {
      ASSERT_EQ(model_[hit->value()].content, content);
      pool_.AddReference(*hit);
      ++model_[hit->value()].references;
      tables_.push_back(*hit);
      return;
    }
    if (pool_.num_available() == 0) return;
    const BlockId block = pool_.Allocate();
    ASSERT_EQ(model_[block.value()].references, 0u);
    model_[block.value()] = {.references = 1, .content = -1};
    tables_.push_back(block);
    if (random_() % 4 == 0) return;
    pool_.Publish(block, ContentOf(tokens));
    model_[block.value()].content = content;
  }

  void Fork() {
    if (tables_.empty()) return;
    const BlockId block = tables_[random_() % tables_.size()];
    pool_.AddReference(block);
    ++model_[block.value()].references;
    tables_.push_back(block);
  }

  void Free() {
    if (tables_.empty()) return;
    std::swap(tables_[random_() % tables_.size()], tables_.back());
    const BlockId block = tables_.back();
    tables_.pop_back();
    pool_.Release(block);
    --model_[block.value()].references;
  }

  void Drop() {
    const BlockId block(random_() % kNumBlocks);
    pool_.Unpublish(block);
    model_[block.value()].content = -1;
  }

  void Check() {
    ASSERT_EQ(pool_.num_used() + pool_.num_cached() + pool_.num_free(), kNumBlocks);
    uint32_t num_used = 0;
    for (uint32_t i = 0; i < kNumBlocks; ++i) {
      ASSERT_EQ(pool_.num_references(BlockId(i)), model_[i].references);
      num_used += model_[i].references > 0 ? 1 : 0;
      // The pool may forget a block (duplicate, eviction), but never invents one.
      if (!pool_.is_published(BlockId(i))) model_[i].content = -1;
    }
    ASSERT_EQ(pool_.num_used(), num_used);
    for (TokenId content = 0; content < kNumContents; ++content) {
      const std::vector<TokenId> tokens = Tokens(content);
      const auto hit = pool_.Find(ContentOf(tokens));
      bool expected = false;
      for (const ModelBlock& block : model_) expected |= block.content == content;
      ASSERT_EQ(hit.has_value(), expected);
      if (hit.has_value()) {
        ASSERT_EQ(model_[hit->value()].content, content);
      }
    }
  }

  const uint32_t block_size_;
  std::mt19937 random_;
  BlockPool pool_;
  std::vector<ModelBlock> model_ = std::vector<ModelBlock>(kNumBlocks);
  std::vector<BlockId> tables_;  // every reference of every table
};

TEST(BlockPoolTest, B069_EqualsASimpleModelOverAMillionSteps) {
  for (uint32_t block_size = 1; block_size <= 5; ++block_size) {
    BlockPoolModel model(block_size, block_size);
    for (int step = 0; step < 200000; ++step) {
      model.Step();
      if (::testing::Test::HasFatalFailure())
        FAIL() << "block size " << block_size << " step " << step;
    }
  }
}

}  // namespace
}  // namespace pagoda::engine
