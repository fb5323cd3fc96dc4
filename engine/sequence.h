#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "engine/beam_search.h"
#include "engine/ids.h"
#include "engine/kv/block_hash.h"
#include "engine/ngram_drafter.h"
#include "engine/output.h"
#include "engine/prefetch.h"
#include "engine/request.h"
#include "engine/stop_checker.h"
#include "engine/token_list.h"

namespace pagoda::engine {

struct LiveRequest;
struct TenantQueue;

// Blocks of one sequence in one KV group, in order of position. Append-only while the sequence
// runs.
using BlockTable = std::vector<BlockId>;

// KV groups of a sequence: layers with equal window and equal block bytes. Models of today have
// one.
inline constexpr uint32_t kNumKvGroups = 1;

// Whoever is lower is served first. Distinct for all sequences of an engine.
struct ServiceOrder {
  int32_t priority = 0;  // 0 under fcfs
  uint64_t arrival = 0;  // of the request: 1, 2, 3, ...
  int32_t index = 0;

  friend bool operator<(const ServiceOrder& a, const ServiceOrder& b) {
    if (a.priority != b.priority) return a.priority < b.priority;
    if (a.arrival != b.arrival) return a.arrival < b.arrival;
    return a.index < b.index;
  }
};

enum class SequenceState : uint8_t {
  kIdle,     // unknown to the scheduler: in the intake, or waiting for its sibling's prompt
  kWaiting,  // in the scheduler's queue, for the first time or after a preemption
  kRunning,  // has a slot and a block table
  kEnded,    // for good
};

// One sequence of a request. Engine thread only. The first group of members is written by the
// Scheduler alone, the second by the StepApplier alone; num_known_tokens changes with `output`.
//
//   0 <= num_confirmed <= num_computed <= num_known_tokens + num_samples_in_flight
//
// A sequence that is not running may still have rows in flight; it then keeps its slot and its
// blocks until the last of them is retired.
struct Sequence {
  Sequence(LiveRequest* request, int32_t index, const Tokenizer* tokenizer);

  // ---- Constant: copies of what every step asks, so that a step in full flow does not touch the
  // request's memory.
  LiveRequest* request;
  RequestKey key;
  int32_t index;
  int32_t max_total_tokens;
  bool is_prompt_only;
  bool wants_text;
  bool wants_logprobs;
  bool ranks_draws;
  bool is_beam;

  // ---- Scheduler
  TenantQueue* tenant = nullptr;  // from the first Enqueue on
  bool is_poisoned = false;       // its keys and values must not be found by others
  // Of a beam: it has said what may follow, and the others have not.
  bool is_held = false;
  bool forces_token = false;  // the worker has another last token than the sequence
  // Of a beam that takes another's place and has not begun to run: the one whose tokens it goes on
  // from. That one keeps them until all beams of the round have said what may follow.
  const Sequence* parent = nullptr;
  SequenceState state = SequenceState::kIdle;
  int32_t num_known_tokens;           // prompt and output on the host
  int32_t num_samples_in_flight = 0;  // tokens that plans in flight will add, drafts among them
  int32_t num_drafts_in_flight = 0;   // ... which may turn out to be wrong
  int32_t num_computed = 0;   // tokens with keys and values once every plan in flight has run
  int32_t num_confirmed = 0;  // ... by plans whose result has been applied
  int32_t num_rows_in_flight = 0;
  int32_t num_admission_tokens = 0;  // tokens that were to be computed when it began to run
  // Of group 0: how many, from the first, are in the prefix index or came from it.
  int32_t num_published_blocks = 0;
  uint32_t num_reserved_blocks = 0;  // promised by admission and not yet taken
  // Behind the window: the first entries of the tables, which mean nothing any more.
  int32_t num_recycled_blocks = 0;
  BlockHash published_hash;  // of the last of the published blocks, or the root
  std::optional<SlotId> slot;
  absl::InlinedVector<BlockTable, kNumKvGroups> tables;

  // ---- StepApplier
  // Of tokens that may come next; null: none are drafted. The Scheduler reads its draft.
  std::unique_ptr<NgramDrafter> drafter;
  TokenList output;
  StopChecker stop_checker;
  bool has_delta = false;  // its first one is out, and with it what a request says once
  int64_t last_token_ns = 0;
  int64_t first_token_ns = 0;
  double sum_logprob = 0.0;  // of the output, where draws are ranked; a beam's score

  // ---- Scheduler, rarely
  ServiceOrder order;
  uint32_t num_pending_free_blocks = 0;
  int32_t num_waiting_tokens = 0;    // that it had when it began to wait; constant while it does
  uint32_t num_blocks_to_admit = 0;  // what admission lacked when it last failed; 0: not tried
  int32_t num_preemptions = 0;
  std::vector<BlockHash>
      output_hashes;  // of the full blocks after those of LiveRequest::prompt_hashes
};

// One request from Submit to its last retired row. Made by the submitting thread, then engine
// thread only.
struct LiveRequest {
  // `max_model_len` bounds prompt and output. REQUIRES: the prompt is no longer than that.
  LiveRequest(Request request, int32_t max_model_len, const Tokenizer* tokenizer);
  // Computes root_hash and prompt_hashes.
  void HashPrompt(const BlockHasher& hasher, int32_t block_size);
  LiveRequest(const LiveRequest&) = delete;
  LiveRequest& operator=(const LiveRequest&) = delete;

  // ---- Constant after Submit
  Request request;
  int32_t num_prompt_tokens;
  int32_t max_total_tokens;  // prompt and output: max_tokens or the context
  // Nothing is generated: only prompt information is asked for, or there is no room.
  bool is_prompt_only;
  // best_of > n, or beams: the n best of all sequences are returned at the end.
  bool ranks_draws;
  StopRules stop_rules;
  BlockHash root_hash;
  std::vector<BlockHash> prompt_hashes;  // of the prompt's full blocks; empty: no prefix caching

  // ---- Engine thread
  // As many as are drawn; never resized. A single one lies beside its request, in the same page.
  absl::InlinedVector<Sequence, 1> sequences;
  int32_t num_ended = 0;
  bool prompt_is_done = false;  // computed and applied: siblings may share its blocks
  bool has_started = false;     // RequestStarted is out
  int32_t num_cached_tokens = 0;
  int64_t scheduled_ns = 0;  // first step that worked on it; 0: none yet
  int64_t first_token_ns = 0;
  int64_t cancelled_ns = 0;  // when Cancel was called; 0: it was not
  FinishReason outcome = FinishReason::kStop;
  // One per prompt token once all are there; moved into the first delta of index 0.
  std::vector<TokenLogprobs> prompt_logprobs;
  int32_t num_prompt_logprobs_known = 0;  // from the front, the empty first one not counted
  std::vector<OutputDelta> draws;         // where ranks_draws: what each sequence gave
  std::unique_ptr<BeamSearch> beams;      // null: none

  bool has_ended() const { return num_ended == static_cast<int32_t>(sequences.size()); }
  bool wants_prompt_logprobs() const { return request.sampling.num_prompt_logprobs.has_value(); }
  // Prompt log-probabilities of positions 1 to num_prompt_tokens - 1 are all there, or nobody wants
  // them.
  bool has_prompt_logprobs() const {
    return !wants_prompt_logprobs() || num_prompt_logprobs_known == num_prompt_tokens - 1;
  }
};

// Token number `i` of prompt and output. REQUIRES: i < num_known_tokens.
inline TokenId TokenAt(const Sequence& sequence, int32_t i) {
  const LiveRequest& live = *sequence.request;
  return i < live.num_prompt_tokens ? live.request.prompt[i]
                                    : sequence.output[i - live.num_prompt_tokens];
}

// Tokens that a row could compute now.
inline int32_t NumRemainingTokens(const Sequence& sequence) {
  // The last prompt token is only worth computing for the sake of a next one.
  if (sequence.is_prompt_only) return sequence.max_total_tokens - 1 - sequence.num_computed;
  const int32_t num_tokens = sequence.num_known_tokens + sequence.num_samples_in_flight;
  // The last token that may be made is not computed: nothing comes after it.
  return num_tokens < sequence.max_total_tokens ? num_tokens - sequence.num_computed : 0;
}

// Sequences ahead: enough work to hide a read from memory.
inline constexpr size_t kPrefetchDistance = 4;

// Loads into the cache what a step reads of a sequence. Sequences are many and scattered, and what
// is done for one is little; without this a step waits for memory most of the time.
inline void PrefetchSequence(const Sequence* sequence) {
  const auto* begin = reinterpret_cast<const char*>(sequence);
  PrefetchBytes(sequence,
                static_cast<size_t>(reinterpret_cast<const char*>(&sequence->order) - begin));
}

}  // namespace pagoda::engine
