#pragma once

#include <cstdint>
#include <vector>

#include "engine/ids.h"

namespace pagoda::engine {

// The blocks of the pool that nobody uses, in the order in which they will be taken: a doubly
// linked list whose links lie in one array indexed by block, so push, pop and removal from the
// middle are O(1) and never allocate. Thread-compatible.
class FreeBlockQueue {
 public:
  // Holds blocks 0 to num_blocks - 1, in this order.
  explicit FreeBlockQueue(uint32_t num_blocks);

  uint32_t size() const { return size_; }
  bool Contains(BlockId block) const { return links_[block.value()].next != kUnlinked; }

  // REQUIRES: !Contains(block).
  void PushFront(BlockId block) { InsertAfter(end_, block.value()); }
  void PushBack(BlockId block) { InsertAfter(links_[end_].previous, block.value()); }
  // REQUIRES: size() > 0.
  BlockId PopFront();
  // REQUIRES: Contains(block).
  void Remove(BlockId block);

 private:
  struct Link {
    uint32_t previous = kUnlinked;
    uint32_t next = kUnlinked;
  };
  static constexpr uint32_t kUnlinked = UINT32_MAX;

  void InsertAfter(uint32_t place, uint32_t block);

  // Index of the sentinel that closes the list to a ring, so that no operation has a special case
  // at an end.
  const uint32_t end_;
  uint32_t size_;
  std::vector<Link> links_;
};

}  // namespace pagoda::engine
