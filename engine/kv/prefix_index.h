#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "engine/ids.h"
#include "engine/kv/block_events.h"
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
    bool is_first = false;   // `parent` is the start of a chain, no block
    bool is_secret = false;  // of a salted scope: not told of
  };

  // REQUIRES: !Contains(block).
  void Insert(BlockId block, const Content& content);
  // A block with this content, if any.
  absl::optional<BlockId> Find(const Content& content);
  bool Contains(BlockId block);
  // Another block holds the same content. REQUIRES: Contains(block).
  bool HasDuplicate(BlockId block);
  // REQUIRES: Contains(block).
  void Erase(BlockId block);
  size_t size() const { return size_ + num_pending_; }

  // From now on, what begins and ends to be found is appended to `events`; null: nothing is told.
  void set_events(BlockEvents* events) { events_ = events; }
  // Does what Insert has put off, and tells of it.
  void Settle();
  // Appends everything that can be found, in no order, as if it were stored now.
  void AppendAll(BlockEvents* events);

 private:
  // Blocks under one hash form a doubly linked list, so that erasing one of many is O(1).
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Entry {
    BlockHash hash;
    BlockHash parent;
    uint32_t previous = kNone;
    uint32_t next = kNone;
    bool is_listed = false;
    bool is_first = false;
    bool is_secret = false;
  };
  // A step publishes many blocks, one after the other, and each touches three far places of large
  // tables. So Insert only asks for those places; they are written some blocks later, or by Settle
  // before anything else is answered.
  static constexpr size_t kMaxPending = 8;
  struct Pending {
    uint32_t block = 0;
    BlockHash hash;
    BlockHash parent;
    bool is_first = false;
    bool is_secret = false;
  };

  void List(const Pending& pending, const TokenId* tokens);
  void TellStored(uint32_t block, BlockEvents* events) const;

  const uint32_t block_size_;
  size_t size_ = 0;
  std::vector<Entry> entries_;   // by block
  std::vector<TokenId> tokens_;  // block_size_ per block
  std::array<Pending, kMaxPending> pending_;
  std::vector<TokenId> pending_tokens_;  // block_size_ each
  size_t num_pending_ = 0;
  absl::flat_hash_map<BlockHash, uint32_t> first_;
  BlockEvents* events_ = nullptr;
};

}  // namespace pagoda::engine
