#include "engine/kv/block_pool.h"

#include "kernels/base/check.h"

namespace pagoda::engine {

BlockPool::BlockPool(uint32_t num_blocks, uint32_t block_size)
    : queue_(num_blocks), index_(num_blocks, block_size), references_(num_blocks) {}

BlockId BlockPool::Allocate() {
  const BlockId block = queue_.PopFront();
  if (index_.Contains(block)) {
    index_.Erase(block);
    --num_cached_;
    ++num_evictions_;
  }
  references_[block.value()] = 1;
  return block;
}

void BlockPool::AddReference(BlockId block) {
  uint32_t& references = references_[block.value()];
  if (references == 0) {
    PAGODA_CHECK(index_.Contains(block));
    queue_.Remove(block);
    --num_cached_;
  }
  ++references;
}

void BlockPool::Release(BlockId block) {
  uint32_t& references = references_[block.value()];
  PAGODA_CHECK(references > 0);
  if (--references > 0) return;
  // One copy of a content is enough once nobody reads this one.
  if (index_.Contains(block) && index_.HasDuplicate(block)) index_.Erase(block);
  if (index_.Contains(block)) {
    queue_.PushBack(block);
    ++num_cached_;
  } else {
    queue_.PushFront(block);
  }
}

void BlockPool::Publish(BlockId block, const PrefixIndex::Content& content) {
  PAGODA_CHECK(references_[block.value()] > 0);
  index_.Insert(block, content);
}

void BlockPool::Unpublish(BlockId block) {
  if (!index_.Contains(block)) return;
  index_.Erase(block);
  if (references_[block.value()] > 0) return;
  --num_cached_;
  queue_.Remove(block);
  queue_.PushFront(block);
}

uint32_t BlockPool::UnpublishAll() {
  uint32_t num_published = 0;
  // One event says it for all.
  index_.set_events(nullptr);
  for (uint32_t block = 0; block < num_total(); ++block) {
    num_published += index_.Contains(BlockId(block)) ? 1 : 0;
    Unpublish(BlockId(block));
  }
  index_.set_events(events_);
  if (events_ != nullptr) events_->AddCleared();
  return num_published;
}

}  // namespace pagoda::engine
