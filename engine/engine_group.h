#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/ids.h"
#include "engine/kv/block_hash.h"
#include "engine/quarantine.h"

namespace pagoda::engine {

struct LiveRequest;

// What several engines of one model and one configuration share, so that each can go on with what
// another has begun. Thread-safe.
struct EngineGroup {
  // An empty key: a random one.
  explicit EngineGroup(absl::string_view prefix_hash_key);

  const BlockHasher hasher;
  Quarantine quarantine{&hasher};
  // Of the next request: a request keeps its place in the service order wherever it goes.
  std::atomic<uint64_t> next_arrival{1};
};

// The other engines of a group, for one whose workers are lost. Its engine thread calls.
class EnginePeers {
 public:
  virtual ~EnginePeers() = default;

  // The workers are lost, with all that their blocks held.
  virtual void NoteLoss() = 0;
  // Another engine has workers.
  virtual bool CanTakeOver() const = 0;
  // Gives each request to another engine (Engine::Adopt); those that nobody takes stay in
  // `requests`.
  virtual void TakeOver(std::vector<std::unique_ptr<LiveRequest>>* requests) = 0;
  // A cancellation of a request that the engine does not have, perhaps because another took it
  // over meanwhile.
  virtual void ForwardCancel(RequestKey key) = 0;
};

}  // namespace pagoda::engine
