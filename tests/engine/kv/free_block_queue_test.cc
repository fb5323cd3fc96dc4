#include "engine/kv/free_block_queue.h"

#include <deque>
#include <random>

#include <gtest/gtest.h>

namespace pagoda::engine {
namespace {

TEST(FreeBlockQueueTest, GivesBlocksInOrder) {
  FreeBlockQueue queue(3);
  EXPECT_EQ(queue.size(), 3u);
  EXPECT_EQ(queue.PopFront(), BlockId(0));
  EXPECT_EQ(queue.PopFront(), BlockId(1));
  EXPECT_FALSE(queue.Contains(BlockId(1)));
  queue.PushBack(BlockId(0));
  queue.PushFront(BlockId(1));
  EXPECT_EQ(queue.PopFront(), BlockId(1));
  EXPECT_EQ(queue.PopFront(), BlockId(2));
  EXPECT_EQ(queue.PopFront(), BlockId(0));
  EXPECT_EQ(queue.size(), 0u);
}

TEST(FreeBlockQueueTest, RemovesFromTheMiddleAndTheEnds) {
  FreeBlockQueue queue(5);
  queue.Remove(BlockId(2));
  queue.Remove(BlockId(0));
  queue.Remove(BlockId(4));
  EXPECT_EQ(queue.PopFront(), BlockId(1));
  EXPECT_EQ(queue.PopFront(), BlockId(3));
}

TEST(FreeBlockQueueTest, EqualsADequeUnderRandomUse) {
  constexpr uint32_t kNumBlocks = 13;
  FreeBlockQueue queue(kNumBlocks);
  std::deque<uint32_t> model;
  for (uint32_t i = 0; i < kNumBlocks; ++i) model.push_back(i);
  std::mt19937 random(1);
  for (int step = 0; step < 100000; ++step) {
    const uint32_t block = random() % kNumBlocks;
    const auto it = std::find(model.begin(), model.end(), block);
    ASSERT_EQ(queue.Contains(BlockId(block)), it != model.end());
    if (it == model.end()) {
      if (random() % 2 == 0) {
        queue.PushBack(BlockId(block));
        model.push_back(block);
      } else {
        queue.PushFront(BlockId(block));
        model.push_front(block);
      }
    } else if (random() % 2 == 0) {
      queue.Remove(BlockId(block));
      model.erase(it);
    } else {
      ASSERT_EQ(queue.PopFront().value(), model.front());
      model.pop_front();
    }
    ASSERT_EQ(queue.size(), model.size());
  }
}

}  // namespace
}  // namespace pagoda::engine
