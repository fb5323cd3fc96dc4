#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "engine/kv/block_hash.h"

namespace pagoda::daemon {

// What a replica's prefix cache probably holds, from the prompts that were sent there: as many
// blocks as its pool has, of which the least recently used go first. A guess, which costs the
// replica nothing: output takes blocks too, and a prompt that was sent may not be computed yet. A
// wrong guess costs a prefill. Thread-compatible.
class PrefixRecord {
 public:
  explicit PrefixRecord(size_t max_blocks) : max_blocks_(max_blocks) {}

  // How many of the prompt's blocks, from the first, it holds.
  size_t NumHeld(absl::Span<const engine::BlockHash> prompt) const;
  // The prompt goes there. Its first blocks are the last to be forgotten, as in the pool.
  void Note(absl::Span<const engine::BlockHash> prompt);
  void Clear();
  size_t size() const { return places_.size(); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // A doubly linked list through an array, most recently used first.
  struct Node {
    engine::BlockHash hash;
    uint32_t newer = kNone;
    uint32_t older = kNone;
  };

  void Unlink(uint32_t node);
  void PushNewest(uint32_t node);
  // A node for a hash that is not there: a new one, or that of the oldest.
  uint32_t NewNode(const engine::BlockHash& hash);

  const size_t max_blocks_;
  std::vector<Node> nodes_;
  absl::flat_hash_map<engine::BlockHash, uint32_t> places_;
  uint32_t newest_ = kNone;
  uint32_t oldest_ = kNone;
};

}  // namespace pagoda::daemon
