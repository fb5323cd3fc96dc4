#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine_state.h"
#include "engine/ids.h"
#include "engine/scheduled_step.h"
#include "engine/sequence.h"
#include "engine/sequence_blocks.h"
#include "engine/waiting_queue.h"

namespace pagoda::engine {

struct SchedulerOptions {
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t max_prefill_chunk_tokens =
      0;  // of one prompt while others want the step too; 0: no bound
  bool by_priority = false;
};

// Decides who computes how many tokens in the next step, and who holds which blocks.
//
// There is no prefill and no decode phase: a sequence has known and computed tokens, and a step
// lets it catch up under one token budget. A step is filled in this order:
//   1. running sequences that are one token behind, in service order. They always get it: no more
//   sequences run than
//      the budget has tokens. One that has a draft waits until nothing of it is in flight; then its
//      row tries as much of the draft as fits.
//   2. sequences that are further behind, and waiting ones. The first in order gets half of what is
//   left (if it waits for a slot or blocks, nobody does), the shortest
//      of the others share the other half, and what they leave goes back to the first: short
//      prompts pass a long one, which still ends in bounded time. Where several tenants want the
//      step, whoever has been given least for its weight goes first (TenantQueue).
// A step that needs a block for 1 and finds none preempts from the end of the service order; the
// victim computes its tokens again later (most of them from the cache). Blocks that a plan in
// flight names are not free yet, but will be: they are counted as pending, and while they cover the
// need nobody is preempted for it. The last in order does not preempt itself; it waits. Admission
// promises all blocks that a sequence's known tokens need (a count); the step that first writes a
// block takes it.
//
// Pure: no clock, thread, device or random source. Engine thread only.
class Scheduler {
 public:
  // `blocks` outlives this.
  Scheduler(const SchedulerOptions& options, SequenceBlocks* blocks);

  // Hands over a sequence. REQUIRES: kIdle; its order and its request's tenant are set.
  void Enqueue(Sequence* sequence);
  // Plans the next step into `step`; everything it holds counts as in flight from now on. REQUIRES:
  // a step whose empty() is false is sent.
  void Schedule(ScheduledStep* step);
  // The step that held the row has run and its result is here: its keys and values are there, and
  // what was waiting for it may go. REQUIRES: steps in order; before the row's tokens are added to
  // the sequence.
  void RetireRow(const ScheduledRow& row);
  // A row's sample has come: the sequence has one token more on the host.
  void AddKnownToken(Sequence* sequence) { ++sequence->num_known_tokens; }
  // The first `num_accepted` drafts of a row that was retired were right: they are known now, and
  // what the row computed of them counts.
  void KeepDrafts(Sequence* sequence, int32_t num_accepted);
  // A beam has said what may follow, and waits for the others of its request.
  void Hold(Sequence* sequence) { sequence->is_held = true; }
  // A beam goes on where it is, with a token of the host's choice added.
  void Resume(Sequence* sequence);
  // A beam takes the place of the suspended `sequence`: the tokens of `parent`, which keeps them as
  // it goes on, and another one. REQUIRES: the sequence's output says so already.
  void Follow(Sequence* sequence, const Sequence& parent);
  // A beam is none any more: it is kIdle, without slot and blocks. REQUIRES: not kEnded; none of
  // its rows is in flight.
  void Suspend(Sequence* sequence);
  // The sequence has ended; slot and blocks go when no plan in flight names them. REQUIRES: not
  // kEnded.
  void End(Sequence* sequence);

  // Takes a sequence out of the queue, until it is enqueued again. REQUIRES: kWaiting; no row in
  // flight.
  void Withdraw(Sequence* sequence);

  // ---- When the workers are lost, with all that blocks held: first every row in flight is
  // abandoned, then StartOver sends everybody who ran back to the queue: the number of them.
  void AbandonRow(const ScheduledRow& row);
  size_t StartOver();

  // Adds tenants and sequences.
  void Describe(int64_t now_ns, EngineState* state) const;

  // First in service order of all that run or wait; null: none.
  Sequence* Oldest() const;
  const std::vector<Sequence*>& running() const { return running_; }
  size_t num_waiting() const { return waiting_.size(); }
  size_t num_preempted_waiting() const { return num_preempted_waiting_; }
  size_t num_free_slots() const { return free_slots_.size(); }
  const SchedulerOptions& options() const { return options_; }

 private:
  // A sequence that is more than one token behind, or waits, and what this step gives it.
  struct Candidate {
    Sequence* sequence;
    int32_t num_remaining;
    int32_t num_granted;
    double virtual_tokens;  // of its tenant, with what the first candidate is granted
  };
  enum class Growth { kDone, kMustWait, kImpossible };
  enum class Passing { kNever, kFree, kAtCost };

  void ScheduleSequencesInFlow(ScheduledStep* step);
  // A running sequence that catches up has a block to go on with, or gets one as those in flow do.
  bool KeepsPromise(Sequence* sequence, ScheduledStep* step);
  // Tokens of a sequence that catches up for which it has blocks.
  int32_t NumGrantable(const Sequence& sequence) const;
  void ScheduleCatchingUp(ScheduledStep* step);
  // Where nothing moves because beams that wait for others hold what these need: the last of them
  // gives way. False: that is not so.
  bool PreemptHeldBeam(ScheduledStep* step);
  // The first in fair order that is behind leads the candidates, also if it still waits: whoever
  // passes it, it gets half of every step.
  void AdmitOldest(ScheduledStep* step);
  // Adds the first of the queue, and sorts all but the first candidate by what their tenants have
  // been given, then by what they lack.
  void CollectCandidates();
  void Grant(Candidate* candidate, int32_t num_tokens);
  // Drafts that the row of running_[idx], in flow, may have: none unless they fit without taking
  // anything from others.
  int32_t NumDrafts(size_t idx) const;
  // The last `num_drafts` of the tokens are drafted.
  void AddRow(Sequence* sequence, int32_t num_tokens, int32_t num_drafts, ScheduledStep* step);

  // Makes `num_new` blocks available for `sequence` beyond what it was promised, by preemption
  // where need be.
  Growth MakeRoom(Sequence* sequence, uint32_t num_new, ScheduledStep* step);
  void Preempt(Sequence* sequence, ScheduledStep* step);

  // Gives a waiting sequence a slot, the blocks it can share and the promise of the others.
  bool TryAdmit(Sequence* sequence, ScheduledStep* step);
  // The sequence gets a slot and what it needs, and joins the running ones.
  void Run(Sequence* sequence, const SequenceBlocks::Need& need, ScheduledStep* step);
  // Whether `sequence` may run before the head of the queue: if that still finds a slot and its
  // blocks; or at its cost, as long as all that do have no more tokens, made ones included, than
  // it.
  Passing MayPass(const Sequence& sequence) const;
  // Blocks for admission that no one was promised; those who run keep one each to grow into.
  int64_t NumBlocksForAdmission() const;
  // No longer running nor waiting: what it holds goes now or with its last row in flight.
  void Leave(Sequence* sequence);
  void ReleaseResources(Sequence* sequence);

  const SchedulerOptions options_;
  const size_t max_running_;
  SequenceBlocks* const blocks_;

  std::vector<Sequence*> running_;  // in service order
  WaitingQueue waiting_;
  size_t num_preempted_waiting_ = 0;
  std::vector<SlotId> free_slots_;
  std::vector<SlotId> released_slots_;  // not yet told to the worker

  // ---- Of the step being planned; members to keep their memory.
  int32_t budget_ = 0;
  std::vector<Candidate> candidates_;
  std::vector<Sequence*> waiting_candidates_;
};

}  // namespace pagoda::engine
