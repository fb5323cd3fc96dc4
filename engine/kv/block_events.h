#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/ids.h"
#include "engine/kv/block_hash.h"

namespace pagoda::engine {

// A content that can be found from now on or no more; however many blocks hold it, each once.
struct BlockEvent {
  enum class Kind : uint8_t { kStored, kRemoved, kCleared };

  Kind kind = Kind::kCleared;
  bool has_parent = false;  // kStored: not the first block of a prompt
  uint64_t hash = 0;        // BlockHash::EventId; not of kCleared
  uint64_t parent = 0;      // the same of the block before, if has_parent
};

// Events in order. Thread-compatible.
struct BlockEvents {
  // What they were watched for (Engine::WatchBlocks).
  uint64_t watch = 0;
  uint32_t block_size = 0;
  std::vector<BlockEvent> events;
  // Those of the stored blocks, block_size each, in the order of the events.
  std::vector<TokenId> tokens;

  bool empty() const { return events.empty(); }
  void AddStored(const BlockHash& hash,
                 const BlockHash* parent,
                 absl::Span<const TokenId> block_tokens) {
    events.push_back({.kind = BlockEvent::Kind::kStored,
                      .has_parent = parent != nullptr,
                      .hash = hash.EventId(),
                      .parent = parent != nullptr ? parent->EventId() : 0});
    tokens.insert(tokens.end(), block_tokens.begin(), block_tokens.end());
  }
  void AddRemoved(const BlockHash& hash) {
    events.push_back({.kind = BlockEvent::Kind::kRemoved, .hash = hash.EventId()});
  }
  void AddCleared() { events.push_back({.kind = BlockEvent::Kind::kCleared}); }
};

// Takes what the engine tells of its blocks. Called on the engine thread, at most once per round;
// only hands over: never blocks, locks long or throws.
class BlockEventSink {
 public:
  virtual ~BlockEventSink() = default;
  virtual void DeliverBlocks(BlockEvents events) = 0;
};

}  // namespace pagoda::engine
