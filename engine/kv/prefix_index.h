#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "engine/ids.h"
#include "engine/kv/block_hash.h"

namespace pagoda::engine {

// Finds full blocks by content. A block is listed under the hash of its content; several blocks may
// hold the same content (they were computed side by side: tables are append-only, so none is
// replaced by another). A hash only leads to candidates: a hit needs equal tokens after an equal
// parent. Thread-compatible.
class PrefixIndex {
 public:
  PrefixIndex(uint32_t num_blocks, uint32_t block_size);

  // What a block holds. `tokens` has block_size entries.
  struct Content {
    BlockHash hash;
    BlockHash parent;
    absl::Span<const TokenId> tokens;
  };

  // REQUIRES: !Contains(block).
  void Insert(BlockId block, const Content& content);
  void Prefetch(BlockId block) const {
    __builtin_prefetch(&entries_[block.value()], 1);
    __builtin_prefetch(&tokens_[static_cast<size_t>(block.value()) * block_size_], 1);
  }
  // A block with this content, if any.
  absl::optional<BlockId> Find(const Content& content) const;
  bool Contains(BlockId block) const { return entries_[block.value()].is_listed; }
  // Another block holds the same content. REQUIRES: Contains(block).
  bool HasDuplicate(BlockId block) const;
  // REQUIRES: Contains(block).
  void Erase(BlockId block);
  size_t size() const { return size_; }

 private:
  // Blocks under one hash form a doubly linked list, so that erasing one of many is O(1).
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Entry {
    BlockHash hash;
    BlockHash parent;
    uint32_t previous = kNone;
    uint32_t next = kNone;
    bool is_listed = false;
  };

  const uint32_t block_size_;
  size_t size_ = 0;
  std::vector<Entry> entries_;   // by block
  std::vector<TokenId> tokens_;  // block_size_ per block
  absl::flat_hash_map<BlockHash, uint32_t> first_;
};

}  // namespace pagoda::engine
