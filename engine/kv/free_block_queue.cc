#include "engine/kv/free_block_queue.h"

#include "kernels/base/check.h"

namespace pagoda::engine {

FreeBlockQueue::FreeBlockQueue(uint32_t num_blocks)
    : end_(num_blocks), size_(num_blocks), links_(num_blocks + 1) {
  for (uint32_t i = 0; i <= num_blocks; ++i) {
    links_[i].previous = i == 0 ? num_blocks : i - 1;
    links_[i].next = i == num_blocks ? 0 : i + 1;
  }
}

void FreeBlockQueue::InsertAfter(uint32_t place, uint32_t block) {
  PAGODA_CHECK(block < end_ && links_[block].next == kUnlinked);
  const uint32_t next = links_[place].next;
  links_[block] = {.previous = place, .next = next};
  links_[place].next = block;
  links_[next].previous = block;
  ++size_;
}

BlockId FreeBlockQueue::PopFront() {
  PAGODA_CHECK(size_ > 0);
  const BlockId block(links_[end_].next);
  Remove(block);
  return block;
}

void FreeBlockQueue::Remove(BlockId block) {
  Link& link = links_[block.value()];
  PAGODA_CHECK(block.value() < end_ && link.next != kUnlinked);
  links_[link.previous].next = link.next;
  links_[link.next].previous = link.previous;
  link = Link{};
  --size_;
}

}  // namespace pagoda::engine
