#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/server/vllm/kv_event_batches.h"
#include "engine/kv/block_events.h"

namespace pagoda::daemon {

// What the prefix cache holds, as its events say; so that a subscriber who comes late costs the
// engine nothing. Thread-compatible.
class KvEventMirror {
 public:
  // Follows the events, and tells each to `batches` unless that is null.
  void Apply(const engine::BlockEvents& events, KvEventBatches* batches);
  // Tells `cleared`, then every block after its parent.
  void TellState(KvEventBatches* batches) const;
  void Clear() { blocks_.clear(); }
  size_t size() const { return blocks_.size(); }

 private:
  struct Block {
    bool has_parent = false;
    uint64_t parent = 0;
    std::vector<engine::TokenId> tokens;
  };

  absl::flat_hash_map<uint64_t, Block> blocks_;
};

}  // namespace pagoda::daemon
