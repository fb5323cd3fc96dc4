#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "engine/engine_group.h"
#include "engine/engine_state.h"
#include "engine/ids.h"
#include "engine/kv/block_events.h"
#include "engine/metrics.h"
#include "engine/output.h"
#include "engine/request.h"
#include "kernels/base/clock.h"
#include "pagoda/internal/v1/config.pb.h"
#include "parallel/step_pipe.h"

namespace pagoda::engine {

class Tokenizer;

struct EngineOptions {
  internal::v1::EngineConfig config;
  int32_t max_model_len = 0;  // most tokens of prompt and output
  int32_t vocab_size = 0;
  int32_t num_kv_blocks = 0;
  int32_t kv_window = 0;  // tokens that every layer sees at most; 0: some layer sees all
  parallel::StepPipe* pipe = nullptr;    // outlives the engine
  OutputSink* sink = nullptr;            // outlives the engine
  BlockEventSink* block_sink = nullptr;  // outlives the engine; null: blocks cannot be watched
  EngineMetrics* metrics = nullptr;      // outlives the engine
  const Tokenizer* tokenizer = nullptr;  // outlives the engine; null: token ids only
  const Clock* clock = &Clock::Monotonic();
  // Of several engines; both outlive them. Null: the engine is alone.
  EngineGroup* group = nullptr;
  EnginePeers* peers = nullptr;
  // Begins what it logs: "replica 1: ".
  std::string log_prefix;
};

// Schedules, plans, applies. Run is the engine thread; all else is thread-safe.
class Engine {
 public:
  explicit Engine(EngineOptions options);
  ~Engine();

  // Hands a request to the engine thread. RESOURCE_EXHAUSTED when the waiting queue is full (by
  // requests, counting n, or by tokens), UNAVAILABLE when draining, stopped or failed,
  // INVALID_ARGUMENT when it can never fit the KV pool. After OK exactly one delta with `last`
  // follows.
  absl::Status Submit(Request request);
  // The same; leaves a request that it does not take.
  absl::Status TrySubmit(Request* request);
  // Goes on with a request that another engine of the group has given up, also while draining.
  // False: this engine has ended, and `request` stays. REQUIRES: it fits the KV pool.
  bool Adopt(std::unique_ptr<LiveRequest>* request);
  // Ends a request early with kCancelled; unknown keys are ignored.
  void Cancel(RequestKey key);

  // What the prefix cache holds is told to block_sink from the next round on: first kCleared and
  // everything that can be found, then every change, under the number `watch`; until another is
  // given. 0: nothing is told, which costs nothing. Telling everything takes the engine thread as
  // long as copying the cached tokens.
  void WatchBlocks(uint64_t watch);

  // No content of a block can be found any more; sequences keep the blocks that they have. The
  // engine thread calls `done` with the number of contents that were forgotten. False: Run has
  // ended, and nobody is called.
  bool FlushPrefixCache(std::function<void(uint64_t num_blocks)> done);
  // The same with what the engine looks like between two rounds.
  bool DumpState(std::function<void(EngineState state)> done);

  // Runs steps until Stop. Lost workers are replaced and requests go on; when workers are lost more
  // often than the configuration allows, every request that no peer takes over ends with
  // UNAVAILABLE and Run returns why.
  absl::Status Run();
  // Refuses new requests from now on; running and waiting ones go on.
  void Drain();
  // Ends every request with `why` and makes Run return.
  void Stop(absl::Status why);
  // Live requests: waiting, running and not yet taken from the intake.
  int32_t num_live_requests() const;
  // There are workers that take steps of everybody.
  bool has_workers() const;
  // When the oldest step will be so late that its workers may be stuck (StepPipe::late_at_ns).
  int64_t late_at_ns() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pagoda::engine
