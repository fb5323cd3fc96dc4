#include "tests/fakes/engine_harness.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace pagoda::engine {

void CollectingSink::Deliver(std::vector<OutputDelta> deltas) {
  ++num_deliveries;
  const auto violate = [&](const OutputDelta& delta, const char* what) {
    if (violation.empty()) violation = absl::StrCat("request ", delta.key.value(), ": ", what);
  };
  if (deltas.empty()) violation = "empty delivery";
  for (OutputDelta& delta : deltas) {
    if (on_delta) on_delta(delta);
    CollectedRequest& request = requests[delta.key.value()];
    if (request.has_ended) violate(delta, "delta after the last");
    ++request.num_deltas;
    if (delta.started.has_value()) {
      if (request.started.has_value() || request.num_deltas > 1) violate(delta, "started late");
      request.started = delta.started;
    } else if (request.num_deltas == 1) {
      violate(delta, "no started");
    }
    CollectedSequence& sequence = request.sequences[delta.index];
    if (sequence.finished.has_value()) violate(delta, "sequence ended twice");
    sequence.tokens.insert(sequence.tokens.end(), delta.tokens.begin(), delta.tokens.end());
    sequence.text += delta.text;
    sequence.text_pieces.push_back(delta.text);
    for (TokenLogprobs& entry : delta.logprobs) sequence.logprobs.push_back(std::move(entry));
    if (!delta.prompt_logprobs.empty()) sequence.prompt_logprobs = std::move(delta.prompt_logprobs);
    if (delta.finished.has_value()) sequence.finished = std::move(delta.finished);
    if (!delta.last) continue;
    request.has_ended = true;
    for (const auto& [index, each] : request.sequences) {
      if (!each.finished.has_value()) violate(delta, "last delta before every sequence ended");
    }
  }
}

void CollectingBlockSink::DeliverBlocks(BlockEvents events) {
  ++num_deliveries;
  const bool begins = events.watch != watch;
  watch = events.watch;
  if (events.empty() || (begins && events.events[0].kind != BlockEvent::Kind::kCleared))
    violation = "a watch that does not begin with cleared";
  size_t num_stored = 0;
  for (const BlockEvent& event : events.events) {
    switch (event.kind) {
      case BlockEvent::Kind::kStored:
        ++num_stored;
        if (!stored.insert(event.hash).second) violation = "stored twice";
        if (event.has_parent) parents[event.hash] = event.parent;
        break;
      case BlockEvent::Kind::kRemoved:
        if (stored.erase(event.hash) != 1) violation = "removed without being stored";
        parents.erase(event.hash);
        break;
      case BlockEvent::Kind::kCleared:
        ++num_cleared;
        stored.clear();
        parents.clear();
        break;
    }
  }
  if (events.tokens.size() != num_stored * events.block_size) violation = "tokens are missing";
}

std::vector<TokenId> Prompt(int32_t size, TokenId first) {
  std::vector<TokenId> prompt;
  for (int32_t i = 0; i < size; ++i) prompt.push_back((first + i * 7) % 100);
  return prompt;
}

EngineHarness::Options EngineHarness::DefaultOptions() {
  Options options;
  options.config.set_max_num_seqs(8);
  options.config.set_max_num_batched_tokens(8);
  options.config.set_block_size(4);
  options.config.set_prefix_caching(true);
  options.config.set_policy(internal::v1::SCHEDULING_POLICY_FCFS);
  options.config.set_max_waiting_requests(1000);
  options.config.set_max_waiting_tokens(1000000);
  options.config.set_prefix_hash_key("test");
  options.config.set_max_steps_in_flight(2);
  return options;
}

EngineHarness::EngineHarness(const Options& o)
    : options(o),
      pipe({.num_slots = o.config.max_num_seqs(),
            .num_blocks = static_cast<uint32_t>(o.num_kv_blocks),
            .block_size = o.config.block_size(),
            .window = static_cast<uint32_t>(o.kv_window),
            .max_num_batched_tokens = o.config.max_num_batched_tokens(),
            .max_steps_in_flight = o.config.max_steps_in_flight(),
            .vocab_size = o.vocab_size,
            .checks_reads = o.checks_reads}) {
  engine =
      std::make_unique<Engine>(EngineOptions{.config = options.config,
                                             .max_model_len = options.max_model_len,
                                             .vocab_size = static_cast<int32_t>(options.vocab_size),
                                             .num_kv_blocks = options.num_kv_blocks,
                                             .kv_window = options.kv_window,
                                             .pipe = &pipe,
                                             .sink = options.sink == nullptr ? &sink : options.sink,
                                             .block_sink = &block_sink,
                                             .metrics = &metrics,
                                             .tokenizer = options.tokenizer,
                                             .clock = &clock,
                                             .group = options.group,
                                             .peers = options.peers});
}

Request EngineHarness::NewRequest(std::vector<TokenId> prompt, int32_t max_tokens) {
  Request request;
  request.key = RequestKey(next_key_++);
  request.prompt = std::move(prompt);
  request.stop.max_tokens = max_tokens;
  request.sampling.seed = request.key.value();
  request.want_text = options.tokenizer != nullptr;
  request.arrival_ns = clock.now_ns;
  return request;
}

absl::Status EngineHarness::RunToEnd(std::function<void(int)> at_wait, int max_waits) {
  int num_waits = 0;
  pipe.on_wait = [&] {
    clock.now_ns += 1'000'000;
    ++num_waits;
    if (at_wait) at_wait(num_waits);
    if (num_waits >= max_waits) {
      engine->Stop(absl::UnavailableError("test: too many waits"));
    } else if (engine->num_live_requests() == 0 && pipe.num_in_flight() == 0) {
      engine->Stop(absl::UnavailableError("test has ended"));
    }
  };
  absl::Status status = engine->Run();
  if (!pipe.violation().empty()) return absl::InternalError(pipe.violation());
  if (!sink.violation.empty()) return absl::InternalError(sink.violation);
  return status;
}

std::vector<TokenId> EngineHarness::ExpectedTokens(const Request& request,
                                                   int32_t index,
                                                   int32_t num_tokens) const {
  std::vector<uint32_t> tokens(request.prompt.begin(), request.prompt.end());
  std::vector<TokenId> output;
  for (int32_t i = 0; i < num_tokens; ++i) {
    const uint64_t seed = request.sampling.seed + static_cast<uint64_t>(index);
    const uint32_t token = pipe.sample ? pipe.sample(tokens, seed)
                                       : FakeStepPipe::NextToken(tokens, seed, options.vocab_size);
    tokens.push_back(token);
    output.push_back(static_cast<TokenId>(token));
  }
  return output;
}

}  // namespace pagoda::engine
