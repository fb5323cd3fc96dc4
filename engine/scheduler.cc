#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/base/check.h"

namespace pagoda::engine {
namespace {

// Waiting sequences looked at in a step: the head of the queue and the shortest. Beyond the first
// few the step's budget or the slots are gone anyway; the bound keeps a step's cost independent of
// the queue's length.
constexpr size_t kMaxWaitingCandidates = 32;

// What comes after its last token depends on results that are on their way: those of drafts, the
// token that a draft begins after, or which beams go on.
bool WaitsForResult(const Sequence& sequence) {
  if (sequence.num_rows_in_flight == 0) return false;
  const bool has_draft = sequence.drafter != nullptr &&
                         (sequence.num_drafts_in_flight > 0 || !sequence.drafter->draft().empty());
  return has_draft || sequence.is_beam;
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, SequenceBlocks* blocks)
    : options_(options),
      max_running_(std::min(options.max_num_seqs, options.max_num_batched_tokens)),
      blocks_(blocks) {
  PAGODA_CHECK(options.max_num_seqs > 0 && options.max_num_batched_tokens > 0);
  for (int32_t i = options.max_num_seqs; i > 0; --i) {
    free_slots_.push_back(SlotId(static_cast<uint32_t>(i - 1)));
  }
}

void Scheduler::Enqueue(Sequence* sequence) {
  PAGODA_CHECK(sequence->state == SequenceState::kIdle);
  sequence->state = SequenceState::kWaiting;
  if (sequence->num_preemptions > 0) ++num_preempted_waiting_;
  waiting_.Insert(sequence);
}

void Scheduler::Withdraw(Sequence* sequence) {
  PAGODA_CHECK(sequence->state == SequenceState::kWaiting && sequence->num_rows_in_flight == 0);
  waiting_.Erase(sequence);
  if (sequence->num_preemptions > 0) --num_preempted_waiting_;
  sequence->num_blocks_to_admit = 0;
  sequence->state = SequenceState::kIdle;
}

void Scheduler::Schedule(ScheduledStep* step) {
  step->Clear();
  budget_ = options_.max_num_batched_tokens;
  candidates_.clear();
  ScheduleSequencesInFlow(step);
  ScheduleCatchingUp(step);
  while (step->empty() && step->exhausted.empty() && PreemptHeldBeam(step)) {
    candidates_.clear();
    ScheduleSequencesInFlow(step);
    ScheduleCatchingUp(step);
  }
  if (!step->empty()) step->released_slots.swap(released_slots_);
}

void Scheduler::ScheduleSequencesInFlow(ScheduledStep* step) {
  // Preemption takes from the back, behind `i`: those who have got their row are never victims.
  for (size_t i = 0; i < running_.size(); ++i) {
    if (i + kPrefetchDistance < running_.size()) PrefetchSequence(running_[i + kPrefetchDistance]);
    Sequence* const sequence = running_[i];
    const int32_t num_remaining = NumRemainingTokens(*sequence);
    if (num_remaining == 0) continue;
    if (num_remaining > 1 && sequence->num_computed < sequence->num_admission_tokens) {
      if (!KeepsPromise(sequence, step)) continue;
      candidates_.push_back({.sequence = sequence, .num_remaining = NumGrantable(*sequence)});
      continue;
    }
    if (WaitsForResult(*sequence)) continue;
    const int32_t num_tokens = std::min(num_remaining, budget_);
    if (num_tokens == 0) return;
    const uint32_t num_unpromised = blocks_->NumUnpromised(*sequence, num_tokens);
    if (num_unpromised > 0) {
      const Growth growth = MakeRoom(sequence, num_unpromised, step);
      if (growth == Growth::kImpossible) step->exhausted.push_back(sequence);
      if (growth != Growth::kDone) continue;
    }
    const int32_t num_drafts = sequence->drafter == nullptr ? 0 : NumDrafts(i);
    budget_ -= num_tokens + num_drafts;
    AddRow(sequence, num_tokens + num_drafts, num_drafts, step);
  }
}

int32_t Scheduler::NumDrafts(size_t idx) const {
  const Sequence& sequence = *running_[idx];
  // Its last token is known, and its row ends with it.
  const int32_t num_known = sequence.num_known_tokens;
  if (sequence.num_rows_in_flight > 0 || num_known - sequence.num_computed != 1) return 0;
  const int64_t num_others = static_cast<int64_t>(running_.size() - idx) - 1;
  int64_t num_drafts = std::min<int64_t>({
      static_cast<int64_t>(sequence.drafter->draft().size()),
      // One token more is sampled, and the last that may be made is not computed.
      sequence.max_total_tokens - num_known - 1,
      budget_ - 1 - num_others,
  });
  // A block for drafts alone is taken early only where nobody waits for one.
  while (num_drafts > 0) {
    const uint32_t num_new = blocks_->NumUnpromised(sequence, 1 + static_cast<int32_t>(num_drafts));
    if (num_new <= blocks_->NumUnpromised(sequence, 1) ||
        num_new + num_others <= blocks_->num_unpromised()) {
      break;
    }
    --num_drafts;
  }
  return static_cast<int32_t>(std::max<int64_t>(num_drafts, 0));
}

bool Scheduler::KeepsPromise(Sequence* sequence, ScheduledStep* step) {
  if (blocks_->NumPromisedTokens(*sequence) > 0) return true;
  // Its own blocks come back with the results.
  if (sequence->num_rows_in_flight > 0) return false;
  const Growth growth = MakeRoom(sequence, 1, step);
  if (growth == Growth::kImpossible) step->exhausted.push_back(sequence);
  if (growth != Growth::kDone) return false;
  blocks_->Promise(sequence);
  return true;
}

int32_t Scheduler::NumGrantable(const Sequence& sequence) const {
  return std::min(NumRemainingTokens(sequence), blocks_->NumPromisedTokens(sequence));
}

void Scheduler::ScheduleCatchingUp(ScheduledStep* step) {
  if (budget_ == 0) return;
  const size_t num_prompts = candidates_.size() + waiting_.size();
  if (num_prompts == 0) return;
  const bool is_contended = num_prompts > 1;
  const int32_t chunk = is_contended && options_.max_prefill_chunk_tokens > 0
                            ? options_.max_prefill_chunk_tokens
                            : std::numeric_limits<int32_t>::max();
  AdmitOldest(step);
  const bool has_first = !candidates_.empty();
  if (has_first)
    Grant(&candidates_.front(), std::min(chunk, is_contended ? (budget_ + 1) / 2 : budget_));
  if (is_contended) {
    CollectCandidates();
    for (size_t i = has_first ? 1 : 0; i < candidates_.size() && budget_ > 0; ++i) {
      Candidate& candidate = candidates_[i];
      Sequence* const sequence = candidate.sequence;
      if (sequence->state == SequenceState::kWaiting) {
        const Passing passing = MayPass(*sequence);
        const Sequence* const head = waiting_.Head();
        if (passing == Passing::kNever || !TryAdmit(sequence, step)) continue;
        if (passing == Passing::kAtCost)
          WaitingQueue::NotePassed(*head, sequence->max_total_tokens);
        candidate.num_remaining = NumGrantable(*sequence);
      }
      Grant(&candidate, chunk);
    }
    if (has_first) Grant(&candidates_.front(), chunk - candidates_.front().num_granted);
  }
  for (const Candidate& candidate : candidates_) {
    if (candidate.num_granted > 0) AddRow(candidate.sequence, candidate.num_granted, 0, step);
  }
}

bool Scheduler::PreemptHeldBeam(ScheduledStep* step) {
  Sequence* last_held = nullptr;
  bool is_wanted = false;
  for (Sequence* sequence : running_) {
    if (sequence->num_rows_in_flight > 0) return false;
    if (sequence->is_held) last_held = sequence;
    is_wanted |= !sequence->is_held;
  }
  waiting_.ForEach([&is_wanted](const Sequence* sequence) {
    is_wanted = is_wanted || (!sequence->is_held && sequence->num_rows_in_flight == 0);
  });
  if (last_held == nullptr || !is_wanted) return false;
  Preempt(last_held, step);
  return true;
}

void Scheduler::AdmitOldest(ScheduledStep* step) {
  // They are in service order; among tenants the fair order may be another.
  const auto first = std::min_element(
      candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
        return GoesBefore(*a.sequence, *b.sequence);
      });
  if (first != candidates_.end()) std::rotate(candidates_.begin(), first, first + 1);
  Sequence* const head = waiting_.Head();
  if (head == nullptr) return;
  if (!candidates_.empty() && GoesBefore(*candidates_.front().sequence, *head)) return;
  if (!TryAdmit(head, step)) return;
  candidates_.insert(candidates_.begin(), {.sequence = head, .num_remaining = NumGrantable(*head)});
}

void Scheduler::CollectCandidates() {
  const size_t num_first = candidates_.empty() ? 0 : 1;
  if (!free_slots_.empty() && running_.size() < max_running_ && NumBlocksForAdmission() > 0) {
    waiting_.FindCandidates(kMaxWaitingCandidates, &waiting_candidates_);
    for (Sequence* sequence : waiting_candidates_)
      candidates_.push_back({.sequence = sequence, .num_remaining = NumRemainingTokens(*sequence)});
  }
  if (candidates_.empty()) return;
  const Candidate& leader = candidates_.front();
  for (Candidate& candidate : candidates_) {
    const TenantQueue& tenant = *candidate.sequence->tenant;
    candidate.virtual_tokens = tenant.virtual_tokens;
    if (&tenant == leader.sequence->tenant)
      candidate.virtual_tokens += leader.num_granted * tenant.cost_of_token;
  }
  // Shortest first within a tenant and a priority.
  const auto begin = candidates_.begin() + static_cast<ptrdiff_t>(num_first);
  std::sort(begin, candidates_.end(), [](const Candidate& a, const Candidate& b) {
    if (a.virtual_tokens != b.virtual_tokens) return a.virtual_tokens < b.virtual_tokens;
    const int32_t priority_a = a.sequence->order.priority;
    const int32_t priority_b = b.sequence->order.priority;
    if (priority_a != priority_b) return priority_a < priority_b;
    if (a.num_remaining != b.num_remaining) return a.num_remaining < b.num_remaining;
    return a.sequence->order < b.sequence->order;
  });
}

void Scheduler::Grant(Candidate* candidate, int32_t num_tokens) {
  num_tokens = std::min({num_tokens, budget_, candidate->num_remaining - candidate->num_granted});
  candidate->num_granted += num_tokens;
  budget_ -= num_tokens;
}

void Scheduler::AddRow(Sequence* sequence,
                       int32_t num_tokens,
                       int32_t num_drafts,
                       ScheduledStep* step) {
  const uint32_t num_new_blocks = blocks_->NumMissing(*sequence, num_tokens);
  if (num_new_blocks > 0) {
    // A sequence that is new in this step is sent with its whole table.
    const bool is_new = sequence->num_rows_in_flight == 0 && sequence->num_confirmed == 0;
    for (uint32_t group = 0; group < kNumKvGroups && !is_new; ++group) {
      const uint32_t num_blocks = static_cast<uint32_t>(sequence->tables[group].size());
      step->growth.push_back({.sequence = sequence, .group = group, .first = num_blocks});
    }
    blocks_->Take(sequence, num_new_blocks);
  }
  const int32_t num_tokens_then = sequence->num_known_tokens + sequence->num_samples_in_flight;
  // Made in its place: a copy would wait for its own parts.
  ScheduledRow& row = step->rows.emplace_back();
  row.sequence = sequence;
  row.slot = *sequence->slot;
  row.num_tokens = num_tokens;
  row.num_drafts = num_drafts;
  row.is_prefill =
      num_tokens - num_drafts > 1 || sequence->num_computed < sequence->num_admission_tokens - 1;
  sequence->num_computed += num_tokens;
  row.computed_end = sequence->num_computed;
  row.samples = row.computed_end - num_drafts == num_tokens_then;
  row.forces_token = std::exchange(sequence->forces_token, false);
  sequence->num_samples_in_flight += row.samples ? 1 + num_drafts : 0;
  sequence->num_drafts_in_flight = num_drafts;
  ++sequence->num_rows_in_flight;
  sequence->tenant->virtual_tokens += num_tokens * sequence->tenant->cost_of_token;
  step->num_tokens += num_tokens;
}

Scheduler::Growth Scheduler::MakeRoom(Sequence* sequence, uint32_t num_new, ScheduledStep* step) {
  while (true) {
    const int64_t num_available = blocks_->num_unpromised();
    if (num_available >= num_new) return Growth::kDone;
    if (num_available + blocks_->num_pending_free() >= num_new) return Growth::kMustWait;
    Sequence* const victim = running_.back();
    if (victim != sequence) {
      Preempt(victim, step);
      continue;
    }
    // Those before it will end or take its blocks; alone, it has outgrown the pool.
    const bool is_alone = running_.size() == 1 && sequence->num_rows_in_flight == 0;
    return is_alone ? Growth::kImpossible : Growth::kMustWait;
  }
}

void Scheduler::Preempt(Sequence* sequence, ScheduledStep* step) {
  running_.erase(std::lower_bound(running_.begin(), running_.end(), sequence, OrderLess()));
  --sequence->tenant->num_running;
  sequence->state = SequenceState::kWaiting;
  sequence->num_blocks_to_admit = 0;
  ++sequence->num_preemptions;
  ++step->num_preemptions;
  ++num_preempted_waiting_;
  waiting_.Insert(sequence);
  Leave(sequence);
}

Scheduler::Passing Scheduler::MayPass(const Sequence& sequence) const {
  if (sequence.is_held) return Passing::kNever;
  const Sequence& head = *waiting_.Head();
  if (&head == &sequence) return Passing::kFree;
  if (head.num_rows_in_flight > 0) return Passing::kNever;
  const int64_t num_blocks = blocks_->NumHeldBlocks(sequence.num_known_tokens) +
                             blocks_->NumHeldBlocks(head.num_known_tokens);
  // One block for the growth of each of the two.
  if (free_slots_.size() >= 2 && running_.size() + 2 <= max_running_ &&
      NumBlocksForAdmission() >= num_blocks + 2)
    return Passing::kFree;
  // A beam may come to wait for others that find no place.
  if (sequence.is_beam) return Passing::kNever;
  const int64_t num_tokens = WaitingQueue::NumPassedTokens(head) + sequence.max_total_tokens;
  return num_tokens <= head.num_waiting_tokens ? Passing::kAtCost : Passing::kNever;
}

int64_t Scheduler::NumBlocksForAdmission() const {
  return blocks_->num_unpromised() - static_cast<int64_t>(running_.size());
}

bool Scheduler::TryAdmit(Sequence* sequence, ScheduledStep* step) {
  // A preempted one comes back when its last row is retired: then all its tokens are known.
  if (sequence->num_rows_in_flight > 0 || sequence->is_held) return false;
  if (free_slots_.empty() || running_.size() >= max_running_) return false;
  const int64_t num_available = NumBlocksForAdmission();
  // Another look at the cache can wait until there is more than last time.
  if (sequence->num_blocks_to_admit > num_available) return false;

  LiveRequest& live = *sequence->request;
  const int32_t num_tokens =
      live.is_prompt_only ? live.num_prompt_tokens - 1 : sequence->num_known_tokens;
  // The last token of a full hit is computed again: its logits are needed.
  int32_t max_shared_tokens = live.is_prompt_only ? num_tokens : num_tokens - 1;
  const bool skips_cache = sequence->index == 0 && !live.has_prompt_logprobs();
  if (skips_cache) max_shared_tokens = std::min(max_shared_tokens, live.num_prompt_logprobs_known);
  const SequenceBlocks::Need need = blocks_->Find(*sequence, num_tokens, max_shared_tokens);
  const bool is_done = need.num_shared_tokens == num_tokens;
  const bool is_impossible = blocks_->NumHeldBlocks(num_tokens) > blocks_->num_total();
  if (!is_done && !is_impossible && need.num_unpromised > num_available) {
    sequence->num_blocks_to_admit = static_cast<uint32_t>(need.num_unpromised);
    return false;
  }
  const bool is_former_beam = sequence->is_beam && live.prompt_is_done;
  if (sequence->num_preemptions == 0 && !is_former_beam) {
    if (sequence->index == 0) live.num_cached_tokens = need.num_shared_tokens;
    if (blocks_->prefix_caching() && !skips_cache) {
      step->num_query_tokens += num_tokens;
      step->num_hit_tokens += need.num_shared_tokens;
    }
  }
  if (is_done || is_impossible) {
    step->exhausted.push_back(sequence);
    return false;
  }
  waiting_.Erase(sequence);
  if (sequence->num_preemptions > 0) --num_preempted_waiting_;
  sequence->num_admission_tokens = num_tokens;
  Run(sequence, need, step);
  return true;
}

void Scheduler::Run(Sequence* sequence, const SequenceBlocks::Need& need, ScheduledStep* step) {
  blocks_->Begin(sequence, need);
  sequence->num_computed = need.num_shared_tokens;
  sequence->num_confirmed = 0;
  sequence->forces_token = false;  // it is sent with its tokens
  sequence->parent = nullptr;
  sequence->slot = free_slots_.back();
  free_slots_.pop_back();
  sequence->state = SequenceState::kRunning;
  ++sequence->tenant->num_running;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), sequence, OrderLess()),
                  sequence);
  step->admitted.push_back({.sequence = sequence,
                            .num_computed_tokens = need.num_shared_tokens,
                            .copied_block = need.copied_block});
}

void Scheduler::RetireRow(const ScheduledRow& row) {
  Sequence* const sequence = row.sequence;
  --sequence->num_rows_in_flight;
  sequence->num_samples_in_flight -= row.samples ? 1 + row.num_drafts : 0;
  // Drafts are wrong until KeepDrafts says otherwise. No row follows one with drafts in flight.
  sequence->num_drafts_in_flight -= row.num_drafts;
  sequence->num_computed -= row.num_drafts;
  sequence->num_confirmed = row.computed_end - row.num_drafts;
  blocks_->Publish(sequence);
  if (sequence->state == SequenceState::kRunning) blocks_->Recycle(sequence);
  if (sequence->state != SequenceState::kRunning && sequence->num_rows_in_flight == 0) {
    ReleaseResources(sequence);
  }
}

void Scheduler::KeepDrafts(Sequence* sequence, int32_t num_accepted) {
  // Of one that has left, nothing is kept.
  if (sequence->state != SequenceState::kRunning) return;
  sequence->num_computed += num_accepted;
  sequence->num_confirmed += num_accepted;
  blocks_->Publish(sequence);
  blocks_->Recycle(sequence);
}

void Scheduler::Resume(Sequence* sequence) {
  AddKnownToken(sequence);
  sequence->is_held = false;
  sequence->forces_token = sequence->state == SequenceState::kRunning;
}

void Scheduler::Follow(Sequence* sequence, const Sequence& parent) {
  sequence->num_known_tokens = parent.num_known_tokens + 1;
  sequence->parent = &parent;
  Enqueue(sequence);
}

void Scheduler::Suspend(Sequence* sequence) {
  PAGODA_CHECK(sequence->num_rows_in_flight == 0);
  sequence->is_held = false;
  sequence->parent = nullptr;
  if (sequence->state == SequenceState::kIdle) return;
  End(sequence);
  sequence->state = SequenceState::kIdle;
  sequence->num_blocks_to_admit = 0;
}

void Scheduler::End(Sequence* sequence) {
  PAGODA_CHECK(sequence->state != SequenceState::kEnded);
  const SequenceState before = sequence->state;
  sequence->state = SequenceState::kEnded;
  if (before == SequenceState::kWaiting) {
    // Resources of a preempted one are on their way already.
    waiting_.Erase(sequence);
    if (sequence->num_preemptions > 0) --num_preempted_waiting_;
  } else if (before == SequenceState::kRunning) {
    running_.erase(std::lower_bound(running_.begin(), running_.end(), sequence, OrderLess()));
    --sequence->tenant->num_running;
    Leave(sequence);
  }
}

void Scheduler::Leave(Sequence* sequence) {
  if (sequence->num_rows_in_flight > 0) {
    blocks_->BeginRelease(sequence);
  } else {
    ReleaseResources(sequence);
  }
}

void Scheduler::ReleaseResources(Sequence* sequence) {
  blocks_->Release(sequence);
  released_slots_.push_back(*sequence->slot);
  free_slots_.push_back(*sequence->slot);
  sequence->slot.reset();
  sequence->num_computed = 0;
  sequence->num_confirmed = 0;
}

void Scheduler::AbandonRow(const ScheduledRow& row) {
  Sequence* const sequence = row.sequence;
  // Another row of it has been abandoned, or this one was retired before the loss.
  if (sequence->num_rows_in_flight == 0) return;
  sequence->num_rows_in_flight = 0;
  sequence->num_samples_in_flight = 0;
  sequence->num_drafts_in_flight = 0;
  if (sequence->state != SequenceState::kRunning) ReleaseResources(sequence);
}

size_t Scheduler::StartOver() {
  const size_t num_running = running_.size();
  // As by Preempt, but nobody else profits.
  while (!running_.empty()) {
    Sequence* const sequence = running_.back();
    running_.pop_back();
    --sequence->tenant->num_running;
    sequence->state = SequenceState::kWaiting;
    ++sequence->num_preemptions;
    ++num_preempted_waiting_;
    waiting_.Insert(sequence);
    ReleaseResources(sequence);
  }
  waiting_.ForEach([](Sequence* sequence) { sequence->num_blocks_to_admit = 0; });
  // New workers know of none.
  released_slots_.clear();
  blocks_->ForgetContents();
  return num_running;
}

Sequence* Scheduler::Oldest() const {
  if (running_.empty()) return waiting_.Oldest();
  if (waiting_.empty()) return running_.front();
  return std::min(running_.front(), waiting_.Oldest(), OrderLess());
}

}  // namespace pagoda::engine
