#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kernels/base/clock.h"
#include "tests/fakes/fake_step_pipe.h"

namespace pagoda::engine {

class FakeClock : public Clock {
 public:
  int64_t NowNs() const override { return now_ns; }
  int64_t now_ns = 1'000'000'000;
};

// What one sequence of a request gave, deltas joined.
struct CollectedSequence {
  std::vector<TokenId> tokens;
  std::string text;
  std::vector<TokenLogprobs> logprobs;
  std::vector<TokenLogprobs> prompt_logprobs;
  std::vector<std::string> text_pieces;
  std::optional<SequenceFinished> finished;
};

struct CollectedRequest {
  std::map<int32_t, CollectedSequence> sequences;
  std::optional<RequestStarted> started;
  int num_deltas = 0;
  bool has_ended = false;
};

// Joins deltas, and notes whatever breaks the contract of output.h.
class CollectingSink : public OutputSink {
 public:
  void Deliver(std::vector<OutputDelta> deltas) override;

  std::map<uint64_t, CollectedRequest> requests;
  int num_deliveries = 0;
  std::string violation;
  std::function<void(const OutputDelta&)> on_delta;
};

// Follows block events, and notes what contradicts those before.
class CollectingBlockSink : public BlockEventSink {
 public:
  void DeliverBlocks(BlockEvents events) override;

  std::set<uint64_t> stored;             // by hash
  std::map<uint64_t, uint64_t> parents;  // of those stored that have one
  uint64_t watch = 0;
  int num_deliveries = 0, num_cleared = 0;
  std::string violation;
};

// A prompt of tokens below 100; equal `first`, equal tokens.
std::vector<TokenId> Prompt(int32_t size, TokenId first = 1);

// An engine over a FakeStepPipe, in one thread: the test acts while the engine waits. Every step
// takes 1 ms of fake time.
class EngineHarness {
 public:
  struct Options {
    internal::v1::EngineConfig config;
    int32_t max_model_len = 256;
    int32_t num_kv_blocks = 64;
    int32_t kv_window = 0;
    uint32_t vocab_size = 100;
    const Tokenizer* tokenizer = nullptr;
    bool checks_reads = true;
    EngineGroup* group = nullptr;
    EnginePeers* peers = nullptr;
    OutputSink* sink = nullptr;  // null: the harness's own
  };
  // 8 sequences, budget 8, blocks of 4, one step ahead, prefix caching, wide queue.
  static Options DefaultOptions();

  explicit EngineHarness(const Options& options);

  // A request with the next key; change it, then Submit.
  Request NewRequest(std::vector<TokenId> prompt, int32_t max_tokens);
  absl::Status Submit(Request request) { return engine->Submit(std::move(request)); }
  // Runs until no request is live, or `num_waits` waits have passed; `at_wait` is called at each,
  // from 1.
  absl::Status RunToEnd(std::function<void(int num_waits)> at_wait = nullptr,
                        int max_waits = 1000000);

  const CollectedSequence& Sequence(RequestKey key, int32_t index = 0) {
    return sink.requests[key.value()].sequences[index];
  }
  // What the request's sequence must give, computed without an engine (no stop but max_tokens).
  std::vector<TokenId> ExpectedTokens(const Request& request,
                                      int32_t index,
                                      int32_t num_tokens) const;

  Options options;
  FakeClock clock;
  FakeStepPipe pipe;
  CollectingSink sink;
  CollectingBlockSink block_sink;
  EngineMetrics metrics;
  std::unique_ptr<Engine> engine;

 private:
  uint64_t next_key_ = 1;
};

}  // namespace pagoda::engine
