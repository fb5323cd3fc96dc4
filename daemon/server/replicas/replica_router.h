#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "daemon/server/engine_port.h"
#include "daemon/server/replicas/prefix_record.h"
#include "daemon/server/replicas/replica_choice.h"
#include "engine/engine_group.h"
#include "engine/kv/block_hash.h"
#include "engine/output.h"
#include "engine/sequence.h"
#include "kernels/base/mutex.h"

namespace pagoda::daemon {

// What the router asks of a replica's engine. Thread-safe.
class ReplicaPort {
 public:
  virtual ~ReplicaPort() = default;
  // Engine's TrySubmit, Adopt, Cancel and has_workers.
  virtual absl::Status TrySubmit(engine::Request* request) = 0;
  virtual bool Adopt(std::unique_ptr<engine::LiveRequest>* request) = 0;
  virtual void Cancel(engine::RequestKey key) = 0;
  virtual bool has_workers() const = 0;
};

// The front end's engine where there are several: gives each request to one replica
// (ChooseReplica), and those of a replica that has lost its workers to the others. A replica that
// is full or has ended is passed over for the next best.
//
// Everybody who knows where a request is holds the lock while he acts on it, so that a cancellation
// either finds a request where it is, or is forwarded from where it was. Thread-safe.
class ReplicaRouter final : public EnginePort {
 public:
  struct Options {
    size_t num_replicas = 0;
    const engine::EngineGroup* group = nullptr;  // outlives the router
    engine::OutputSink* sink = nullptr;          // outlives the router
    size_t block_tokens = 0;
    // Of each replica's pool; 0: prefixes are not cached.
    size_t max_cached_blocks = 0;
  };
  // Why requests went where they did.
  enum class Reason : uint8_t { kPrefix, kLoad, kTakenOver };
  static constexpr size_t kNumReasons = 3;

  explicit ReplicaRouter(const Options& options);
  ~ReplicaRouter() override;
  // Before the first request, for each. `port` outlives the router's use.
  void SetPort(size_t replica, ReplicaPort* port);

  // What the replica's engine delivers to, and where it gives requests away.
  engine::OutputSink* sink(size_t replica);
  engine::EnginePeers* peers(size_t replica);

  absl::Status Submit(engine::Request request) override;
  void Cancel(engine::RequestKey key) override;

  // Requests that went to the replica.
  uint64_t num_routed(size_t replica, Reason reason) const;

 private:
  class Sink;
  class Peers;
  struct Replica;
  // A request that has not ended.
  struct Place {
    size_t replica = 0;
    int64_t num_sequences = 0;
    std::string tenant;  // empty: nobody's
  };
  struct Wanted {
    engine::RequestKey key;
    int64_t num_sequences = 0;
    absl::string_view tenant;
    absl::Span<const engine::BlockHash> prompt;
  };
  using Tried = absl::InlinedVector<bool, 8>;

  std::vector<engine::BlockHash> HashesOf(const engine::Request& request) const;
  // Chooses among those that have not been tried, and enters the request there; absent: all have.
  absl::optional<size_t> FindPlace(const Wanted& wanted, const Tried& tried);
  // Of the replicas i of which may_take(i) holds.
  template <typename MayTake>
  absl::optional<size_t> Choose(const Wanted& wanted, MayTake may_take) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Enter(const Wanted& wanted, size_t replica, bool is_taken_over)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(engine::RequestKey key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- Engine threads
  void NoteOutput(absl::Span<const engine::OutputDelta> deltas);
  void NoteLoss(size_t replica);
  bool CanTakeOver(size_t replica) const;
  void TakeOver(size_t replica, std::vector<std::unique_ptr<engine::LiveRequest>>* requests);
  bool GiveToAnother(size_t replica, std::unique_ptr<engine::LiveRequest>* request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForwardCancel(size_t replica, engine::RequestKey key);

  const Options options_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  mutable Mutex mutex_;
  absl::flat_hash_map<engine::RequestKey, Place> places_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda::daemon
