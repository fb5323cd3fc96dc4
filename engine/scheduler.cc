#include "engine/scheduler.h"

#include <algorithm>
#include <limits>

#include "kernels/base/check.h"

namespace pagoda::engine {
namespace {

// Waiting sequences looked at in a step. Beyond the first few the step's budget or the slots are
// gone anyway; the bound keeps a step's cost independent of the queue's length.
constexpr size_t kMaxWaitingCandidates = 32;

// Sequences ahead: enough work to hide a read from memory.
constexpr size_t kPrefetchDistance = 4;

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, BlockPool* pool, const BlockHasher* hasher)
    : options_(options),
      block_size_(static_cast<uint32_t>(options.block_size)),
      max_running_(std::min(options.max_num_seqs, options.max_num_batched_tokens)),
      pool_(pool),
      hasher_(hasher) {
  PAGODA_CHECK(options.max_num_seqs > 0 && options.max_num_batched_tokens > 0 &&
               options.block_size > 0);
  for (int32_t i = options.max_num_seqs; i > 0; --i) {
    free_slots_.push_back(SlotId(static_cast<uint32_t>(i - 1)));
  }
}

void Scheduler::Enqueue(Sequence* sequence) {
  PAGODA_CHECK(sequence->state == SequenceState::kIdle);
  sequence->state = SequenceState::kWaiting;
  waiting_.insert(sequence);
}

void Scheduler::Schedule(ScheduledStep* step) {
  step->Clear();
  budget_ = options_.max_num_batched_tokens;
  candidates_.clear();
  ScheduleSequencesInFlow(step);
  ScheduleCatchingUp(step);
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
      candidates_.push_back({.sequence = sequence, .num_remaining = num_remaining});
      continue;
    }
    const int32_t num_tokens = std::min(num_remaining, budget_);
    if (num_tokens == 0) return;
    const uint32_t num_missing = NumMissingBlocks(*sequence, num_tokens);
    if (num_missing > sequence->num_reserved_blocks) {
      const Growth growth = MakeRoom(sequence, num_missing - sequence->num_reserved_blocks, step);
      if (growth == Growth::kImpossible) step->exhausted.push_back(sequence);
      if (growth != Growth::kDone) continue;
    }
    budget_ -= num_tokens;
    AddRow(sequence, num_tokens, step);
  }
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
  if (candidates_.empty()) return;
  Grant(&candidates_.front(), std::min(chunk, is_contended ? (budget_ + 1) / 2 : budget_));
  if (is_contended) {
    CollectCandidates();
    for (size_t i = 1; i < candidates_.size() && budget_ > 0; ++i) {
      Candidate& candidate = candidates_[i];
      if (candidate.sequence->state == SequenceState::kWaiting) {
        if (!MayPass(*candidate.sequence) || !TryAdmit(candidate.sequence, step)) continue;
        candidate.num_remaining = NumRemainingTokens(*candidate.sequence);
      }
      Grant(&candidate, chunk);
    }
    Candidate& first = candidates_.front();
    Grant(&first, chunk - first.num_granted);
  }
  for (const Candidate& candidate : candidates_) {
    if (candidate.num_granted > 0) AddRow(candidate.sequence, candidate.num_granted, step);
  }
}

void Scheduler::AdmitOldest(ScheduledStep* step) {
  if (waiting_.empty()) return;
  Sequence* const head = *waiting_.begin();
  if (!candidates_.empty() && candidates_.front().sequence->order < head->order) return;
  if (!TryAdmit(head, step)) return;
  candidates_.insert(candidates_.begin(),
                     {.sequence = head, .num_remaining = NumRemainingTokens(*head)});
}

void Scheduler::CollectCandidates() {
  if (!free_slots_.empty() && running_.size() < max_running_ && NumBlocksForAdmission() > 0) {
    size_t num_more = kMaxWaitingCandidates;
    for (Sequence* sequence : waiting_) {
      if (num_more-- == 0) break;
      candidates_.push_back({.sequence = sequence, .num_remaining = NumRemainingTokens(*sequence)});
    }
  }
  // Shortest first within a priority.
  std::sort(candidates_.begin() + 1, candidates_.end(), [](const Candidate& a, const Candidate& b) {
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

void Scheduler::AddRow(Sequence* sequence, int32_t num_tokens, ScheduledStep* step) {
  TakeBlocks(sequence, num_tokens, step);
  const int32_t num_tokens_then = sequence->num_known_tokens + sequence->num_samples_in_flight;
  ScheduledRow row = {.sequence = sequence, .slot = *sequence->slot, .num_tokens = num_tokens};
  row.is_prefill = num_tokens > 1 || sequence->num_computed < sequence->num_admission_tokens - 1;
  sequence->num_computed += num_tokens;
  row.computed_end = sequence->num_computed;
  row.samples = row.computed_end == num_tokens_then;
  sequence->num_samples_in_flight += row.samples ? 1 : 0;
  ++sequence->num_rows_in_flight;
  step->rows.push_back(row);
  step->num_tokens += num_tokens;
}

uint32_t Scheduler::NumMissingBlocks(const Sequence& sequence, int32_t num_tokens) const {
  const uint32_t num_blocks = static_cast<uint32_t>(sequence.tables[0].size());
  const uint32_t num_needed = NumBlocks(sequence.num_computed + num_tokens);
  return num_needed > num_blocks ? num_needed - num_blocks : 0;
}

void Scheduler::TakeBlocks(Sequence* sequence, int32_t num_tokens, ScheduledStep* step) {
  const uint32_t num_new = NumMissingBlocks(*sequence, num_tokens);
  if (num_new == 0) return;
  const uint32_t num_promised = std::min(num_new, sequence->num_reserved_blocks);
  sequence->num_reserved_blocks -= num_promised;
  num_reserved_ -= num_promised;
  for (uint32_t group = 0; group < kNumKvGroups; ++group) {
    BlockTable& table = sequence->tables[group];
    // A sequence that is new in this step is sent with its whole table.
    const bool is_new = sequence->num_rows_in_flight == 0 && sequence->num_confirmed == 0;
    if (!is_new) {
      step->growth.push_back(
          {.sequence = sequence, .group = group, .first = static_cast<uint32_t>(table.size())});
    }
    for (uint32_t i = 0; i < num_new; ++i) table.push_back(pool_->Allocate());
  }
}

Scheduler::Growth Scheduler::MakeRoom(Sequence* sequence, uint32_t num_new, ScheduledStep* step) {
  while (true) {
    const uint32_t num_available = pool_->num_available() - num_reserved_;
    if (num_available >= num_new) return Growth::kDone;
    if (num_available + num_pending_free_ >= num_new) return Growth::kMustWait;
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
  PAGODA_CHECK(running_.back() == sequence);
  running_.pop_back();
  sequence->state = SequenceState::kWaiting;
  sequence->num_blocks_to_admit = 0;
  ++sequence->num_preemptions;
  ++step->num_preemptions;
  ++num_preempted_waiting_;
  waiting_.insert(sequence);
  Leave(sequence);
}

bool Scheduler::MayPass(const Sequence& sequence) const {
  const Sequence& head = **waiting_.begin();
  if (&head == &sequence) return true;
  const int64_t num_blocks =
      static_cast<int64_t>(NumBlocks(sequence.num_known_tokens)) + NumBlocks(head.num_known_tokens);
  // One block for the growth of each of the two.
  return head.num_rows_in_flight == 0 && free_slots_.size() >= 2 &&
         running_.size() + 2 <= max_running_ && NumBlocksForAdmission() >= num_blocks + 2;
}

int64_t Scheduler::NumBlocksForAdmission() const {
  return static_cast<int64_t>(pool_->num_available()) - num_reserved_ -
         static_cast<int64_t>(running_.size());
}

bool Scheduler::TryAdmit(Sequence* sequence, ScheduledStep* step) {
  // A preempted one comes back when its last row is retired: then all its tokens are known.
  if (sequence->num_rows_in_flight > 0) return false;
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
  FindSharedBlocks(*sequence, max_shared_tokens / options_.block_size);

  const uint32_t num_shared = static_cast<uint32_t>(shared_.size());
  const int32_t num_shared_tokens = static_cast<int32_t>(num_shared * block_size_);
  const uint32_t num_fresh = NumBlocks(num_tokens) - num_shared;
  uint32_t num_from_queue = num_fresh;
  for (BlockId block : shared_) num_from_queue += pool_->num_references(block) == 0 ? 1 : 0;
  const bool has_nothing_to_do = num_shared_tokens == num_tokens;
  const bool is_impossible = NumBlocks(num_tokens) > pool_->num_total();
  if (!has_nothing_to_do && !is_impossible && num_from_queue > num_available) {
    sequence->num_blocks_to_admit = num_from_queue;
    return false;
  }
  if (sequence->num_preemptions == 0) {
    if (sequence->index == 0) live.num_cached_tokens = num_shared_tokens;
    if (options_.prefix_caching && !skips_cache) {
      step->num_query_tokens += num_tokens;
      step->num_hit_tokens += num_shared_tokens;
    }
  }
  if (has_nothing_to_do || is_impossible) {
    step->exhausted.push_back(sequence);
    return false;
  }

  waiting_.erase(sequence);
  if (sequence->num_preemptions > 0) --num_preempted_waiting_;
  for (BlockId block : shared_) pool_->AddReference(block);
  sequence->tables[0].assign(shared_.begin(), shared_.end());
  sequence->num_computed = num_shared_tokens;
  sequence->num_confirmed = 0;
  sequence->num_published_blocks = static_cast<int32_t>(num_shared);
  sequence->published_hash = shared_hash_;
  sequence->num_admission_tokens = num_tokens;
  sequence->num_reserved_blocks = num_fresh;
  num_reserved_ += num_fresh;
  sequence->slot = free_slots_.back();
  free_slots_.pop_back();
  sequence->state = SequenceState::kRunning;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), sequence, OrderLess()),
                  sequence);
  step->admitted.push_back({.sequence = sequence, .num_computed_tokens = num_shared_tokens});
  return true;
}

void Scheduler::FindSharedBlocks(const Sequence& sequence, int32_t max_blocks) {
  const LiveRequest& live = *sequence.request;
  shared_.clear();
  shared_hash_ = live.root_hash;
  if (options_.prefix_caching) {
    for (int32_t i = 0; i < max_blocks; ++i) {
      const PrefixIndex::Content content = ContentOf(sequence, i, shared_hash_);
      const auto block = pool_->Find(content);
      if (!block.has_value()) break;
      shared_.push_back(*block);
      shared_hash_ = content.hash;
    }
  }
  // Siblings share by reference what the first sequence has computed, cached or not.
  const Sequence& first = live.sequences[0];
  if (&first == &sequence || !live.prompt_is_done || first.state != SequenceState::kRunning) return;
  const int32_t num_blocks = std::min(
      max_blocks, std::min(first.num_confirmed, live.num_prompt_tokens) / options_.block_size);
  if (num_blocks <= static_cast<int32_t>(shared_.size())) return;
  shared_.assign(first.tables[0].begin(), first.tables[0].begin() + num_blocks);
  if (options_.prefix_caching) shared_hash_ = live.prompt_hashes[num_blocks - 1];
}

PrefixIndex::Content Scheduler::ContentOf(const Sequence& sequence,
                                          int32_t block_idx,
                                          const BlockHash& parent) {
  const LiveRequest& live = *sequence.request;
  const int32_t begin = block_idx * options_.block_size;
  PrefixIndex::Content content = {.parent = parent};
  if (begin + options_.block_size <= live.num_prompt_tokens) {
    content.tokens = absl::MakeConstSpan(live.request.prompt).subspan(begin, block_size_);
    content.hash = live.prompt_hashes[block_idx];
    return content;
  }
  block_tokens_.clear();
  for (uint32_t i = 0; i < block_size_; ++i) block_tokens_.push_back(TokenAt(sequence, begin + i));
  content.tokens = block_tokens_;
  content.hash = hasher_->Chain(parent, content.tokens);
  return content;
}

void Scheduler::RetireRow(const ScheduledRow& row) {
  Sequence* const sequence = row.sequence;
  --sequence->num_rows_in_flight;
  sequence->num_samples_in_flight -= row.samples ? 1 : 0;
  sequence->num_confirmed = row.computed_end;
  if (options_.prefix_caching) PublishFullBlocks(sequence);
  if (sequence->state != SequenceState::kRunning && sequence->num_rows_in_flight == 0) {
    ReleaseResources(sequence);
  }
}

void Scheduler::PublishFullBlocks(Sequence* sequence) {
  // Tokens sampled after a cancellation were computed but never known.
  const int32_t num_full =
      std::min(sequence->num_confirmed, sequence->num_known_tokens) / options_.block_size;
  if (sequence->num_published_blocks >= num_full || sequence->is_poisoned) return;
  const BlockTable& table = sequence->tables[0];
  for (; sequence->num_published_blocks < num_full; ++sequence->num_published_blocks) {
    const BlockId block = table[sequence->num_published_blocks];
    // Blocks that came from the cache, or from a sibling, may be there already.
    pool_->PrefetchForPublish(block);
    const PrefixIndex::Content content =
        ContentOf(*sequence, sequence->num_published_blocks, sequence->published_hash);
    sequence->published_hash = content.hash;
    if (!pool_->is_published(block)) pool_->Publish(block, content);
  }
}

void Scheduler::Poison(Sequence* sequence) {
  sequence->is_poisoned = true;
  for (BlockId block : sequence->tables[0]) pool_->Unpublish(block);
}

void Scheduler::End(Sequence* sequence) {
  PAGODA_CHECK(sequence->state != SequenceState::kEnded);
  const SequenceState before = sequence->state;
  sequence->state = SequenceState::kEnded;
  if (before == SequenceState::kWaiting) {
    // Resources of a preempted one are on their way already.
    waiting_.erase(sequence);
    if (sequence->num_preemptions > 0) --num_preempted_waiting_;
  } else if (before == SequenceState::kRunning) {
    running_.erase(std::lower_bound(running_.begin(), running_.end(), sequence, OrderLess()));
    Leave(sequence);
  }
}

void Scheduler::Leave(Sequence* sequence) {
  num_reserved_ -= sequence->num_reserved_blocks;
  sequence->num_reserved_blocks = 0;
  if (sequence->num_rows_in_flight == 0) {
    ReleaseResources(sequence);
    return;
  }
  for (const BlockTable& table : sequence->tables) {
    for (BlockId block : table) {
      sequence->num_pending_free_blocks += pool_->num_references(block) == 1 ? 1 : 0;
    }
  }
  num_pending_free_ += sequence->num_pending_free_blocks;
}

void Scheduler::ReleaseResources(Sequence* sequence) {
  for (BlockTable& table : sequence->tables) {
    for (auto block = table.rbegin(); block != table.rend(); ++block) pool_->Release(*block);
    table.clear();
  }
  released_slots_.push_back(*sequence->slot);
  free_slots_.push_back(*sequence->slot);
  sequence->slot.reset();
  num_pending_free_ -= sequence->num_pending_free_blocks;
  sequence->num_pending_free_blocks = 0;
  sequence->num_computed = 0;
  sequence->num_confirmed = 0;
  sequence->num_published_blocks = 0;
}

Sequence* Scheduler::Oldest() const {
  if (running_.empty()) return waiting_.empty() ? nullptr : *waiting_.begin();
  if (waiting_.empty()) return running_.front();
  return std::min(running_.front(), *waiting_.begin(), OrderLess());
}

}  // namespace pagoda::engine
