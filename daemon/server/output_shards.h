#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/server/engine_port.h"
#include "daemon/server/generation_call.h"
#include "engine/output.h"
#include "kernels/base/clock.h"

namespace pagoda::daemon {

// The output threads. Each call belongs to the shard of its key, whose thread alone converts its
// output and writes it; everybody else leaves an event and wakes the thread. Thread-safe.
class OutputShards final : public engine::OutputSink {
 public:
  struct Options {
    size_t num_shards = 1;
    // A reader that takes nothing for so long while output waits is ended.
    absl::Duration stall_timeout = absl::Seconds(30);
    const Clock* clock = &Clock::Monotonic();
  };

  explicit OutputShards(Options options);
  ~OutputShards() override;
  // Before the first call is attached. `engine` outlives the shards' threads.
  void SetEngine(EnginePort* engine) { engine_ = engine; }

  // Engine thread: one append and at most one wake-up per shard.
  void Deliver(std::vector<engine::OutputDelta> deltas) override;

  // Text thread: gives the call to its shard. Before it is submitted, so that output always finds
  // it.
  void Attach(GenerationCall* call);
  // Text thread: what the engine said to the request.
  void NoteSubmitted(engine::RequestKey key, absl::Status status);
  // gRPC threads.
  void NoteWriteReady(engine::RequestKey key);
  void NoteCancelled(engine::RequestKey key);

  // Handles what waits, then joins. Idempotent. REQUIRES: every call has ended.
  void Stop();

 private:
  struct Event {
    enum class Kind : uint8_t { kAttached, kSubmitted, kWriteReady, kCancelled };
    Kind kind;
    engine::RequestKey key;
    GenerationCall* call = nullptr;  // kAttached
    absl::Status status;             // kSubmitted
  };
  // Every shard walks the whole batch and takes its own deltas, which costs less than sorting them
  // on the engine thread.
  using Batch = std::shared_ptr<std::vector<engine::OutputDelta>>;
  struct Shard;

  Shard& ShardOf(engine::RequestKey key);
  void Post(Event event);
  void Run(Shard* shard);
  void Handle(Shard* shard, Event event);
  void HandleBatch(Shard* shard, std::vector<engine::OutputDelta>* batch);
  // Forgets a call that has ended; remembers one whose reader is slow.
  void Keep(Shard* shard,
            engine::RequestKey key,
            GenerationCall* call,
            GenerationCall::Progress progress);
  void EndStalled(Shard* shard);

  const Options options_;
  EnginePort* engine_ = nullptr;
  std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace pagoda::daemon
