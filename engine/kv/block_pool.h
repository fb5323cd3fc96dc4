#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/optional.h"
#include "engine/ids.h"
#include "engine/kv/free_block_queue.h"
#include "engine/kv/prefix_index.h"

namespace pagoda::engine {

// Blocks of the KV pool, counted by the tables that name them.
//
// A block is *used* (references > 0) or in the free queue. A queued block that the index lists is
// *cached*: a hit takes it back, and it is evicted only when its turn in the queue comes (LRU,
// since blocks go to the back when released). Blocks whose content nobody can ask for go to the
// front, so they are taken before any cached one. used + cached + free = total, after every call.
// Thread-compatible.
class BlockPool {
 public:
  BlockPool(uint32_t num_blocks, uint32_t block_size);

  // Takes a block, with one reference, evicting what it cached. REQUIRES: num_available() > 0.
  BlockId Allocate();
  // One more table names the block. REQUIRES: used or cached.
  void AddReference(BlockId block);
  // One table less names the block. Release a table's blocks tail first: heads of prefixes then
  // outlive their tails.
  void Release(BlockId block);

  // The block's content is complete and may be shared. REQUIRES: used, not published.
  void Publish(BlockId block, const PrefixIndex::Content& content);
  // The block's content must not be found again. No-op for a block that is not published.
  void Unpublish(BlockId block);
  // No block's content can be found any more; how many could.
  uint32_t UnpublishAll();
  // A used or cached block with this content.
  absl::optional<BlockId> Find(const PrefixIndex::Content& content) { return index_.Find(content); }

  // Tells of contents that begin and end to be found; null: of nothing. `events` outlives this or
  // the next call.
  void set_events(BlockEvents* events) {
    events_ = events;
    index_.set_events(events);
  }
  // Everything published so far has been told of after this.
  void SettleEvents() { index_.Settle(); }
  // Appends every content that can be found.
  void AppendAll(BlockEvents* events) { index_.AppendAll(events); }

  uint32_t num_references(BlockId block) const { return references_[block.value()]; }
  bool is_published(BlockId block) { return index_.Contains(block); }
  uint32_t num_total() const { return static_cast<uint32_t>(references_.size()); }
  // Blocks that Allocate can give: cached or free.
  uint32_t num_available() const { return queue_.size(); }
  uint32_t num_used() const { return num_total() - queue_.size(); }
  uint32_t num_cached() const { return num_cached_; }
  uint32_t num_free() const { return queue_.size() - num_cached_; }
  // Cached blocks taken for something else, ever.
  uint64_t num_evictions() const { return num_evictions_; }

 private:
  FreeBlockQueue queue_;
  PrefixIndex index_;
  BlockEvents* events_ = nullptr;
  std::vector<uint32_t> references_;  // by block; 0: in queue_
  uint32_t num_cached_ = 0;
  uint64_t num_evictions_ = 0;
};

}  // namespace pagoda::engine
