#include "tests/fakes/fake_step_pipe.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace pagoda::engine {
namespace {

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;
  x ^= x >> 29;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 32);
}

uint64_t Fingerprint(uint64_t before, uint32_t token) { return Mix(before, token) | 1; }

float LogprobOf(uint64_t fingerprint, uint32_t next) {
  return -static_cast<float>(Mix(fingerprint, next) % 1000 + 1) / 100.0f;
}

}  // namespace

FakeStepPipe::FakeStepPipe(const Options& options)
    : options_(options),
      slots_(options.num_slots),
      contents_(static_cast<size_t>(options.num_blocks) * options.block_size),
      num_namings_(options.num_blocks) {}

uint32_t FakeStepPipe::NextToken(const std::vector<uint32_t>& tokens,
                                 uint64_t seed,
                                 uint32_t vocab_size) {
  uint64_t fingerprint = 0;
  for (uint32_t token : tokens) fingerprint = Fingerprint(fingerprint, token);
  return static_cast<uint32_t>(Mix(fingerprint, seed) % vocab_size);
}

float FakeStepPipe::Logprob(const std::vector<uint32_t>& tokens, size_t num_before, uint32_t next) {
  uint64_t fingerprint = 0;
  for (size_t i = 0; i < num_before; ++i) fingerprint = Fingerprint(fingerprint, tokens[i]);
  return LogprobOf(fingerprint, next);
}

void FakeStepPipe::Violate(const std::string& what) {
  if (violation_.empty()) violation_ = absl::StrCat("step ", last_step_id_, ": ", what);
}

uint32_t FakeStepPipe::FirstBlockRead(uint32_t position) const {
  const bool sees_all = options_.window == 0 || position < options_.window;
  return sees_all ? 0 : (position - options_.window + 1) / options_.block_size;
}

uint64_t FakeStepPipe::NextNotFinite() { return ~uint64_t{1} - 2 * num_not_finite_++; }

uint32_t FakeStepPipe::num_live_slots() const {
  uint32_t num_live = 0;
  for (const Slot& slot : slots_) num_live += slot.is_live ? 1 : 0;
  return num_live;
}

absl::Status FakeStepPipe::Submit(const internal::v1::StepPlan& plan) {
  if (fault.has_value()) return *fault;
  if (!is_ready()) Violate("a plan for workers that are not ready");
  if (on_plan) on_plan(plan);
  if (plan.step_id() != last_step_id_ + 1) Violate(absl::StrCat("id is ", plan.step_id()));
  last_step_id_ = plan.step_id();
  if (in_flight_.size() >= options_.max_steps_in_flight) Violate("too many steps in flight");
  ReleaseSlots(plan);
  for (const internal::v1::NewSequence& sequence : plan.new_sequences()) AddSequence(sequence);
  AppendBlocks(plan);
  ForceTokens(plan);
  InFlight step;
  step.result.set_step_id(plan.step_id());
  CheckDrafts(plan);
  uint64_t num_tokens = 0;
  int next_draft = 0;
  std::set<uint32_t>& rows = step.rows;
  for (int i = 0; i < plan.row_slots_size() && violation_.empty(); ++i) {
    const uint32_t slot = plan.row_slots(i);
    if (!rows.insert(slot).second) Violate("two rows for one slot");
    num_tokens += plan.row_num_tokens(i);
    std::vector<uint32_t> draft;
    if (next_draft < plan.drafts_size() && plan.drafts(next_draft).slot() == slot) {
      const auto& ids = plan.drafts(next_draft++).token_ids();
      draft.assign(ids.begin(), ids.end());
      step.drafted.insert(slot);
    }
    ComputeRow(slot, plan.row_num_tokens(i), plan.row_samples(i) != 0, draft, &step);
  }
  if (next_draft != plan.drafts_size()) Violate("a draft without a row");
  if (plan.row_slots_size() == 0) Violate("no rows");
  if (num_tokens > options_.max_num_batched_tokens) Violate("too many tokens");
  for (const internal::v1::NewSequence& sequence : plan.new_sequences()) {
    if (step.rows.count(sequence.slot()) == 0) Violate("a new sequence without a row");
  }
  step.result.set_start_ns(num_steps_ * 1000);
  step.result.set_end_ns(num_steps_ * 1000 + 1000);
  in_flight_.push_back(std::move(step));
  ++num_steps_;
  num_rows_ += plan.row_slots_size();
  num_tokens_computed_ += num_tokens;
  if (!violation_.empty()) return absl::InternalError(violation_);
  return absl::OkStatus();
}

void FakeStepPipe::ReleaseSlots(const internal::v1::StepPlan& plan) {
  for (uint32_t released : plan.released_slots()) {
    if (released >= slots_.size() || !slots_[released].is_live) return Violate("released twice");
    const Slot& slot = slots_[released];
    for (size_t i = slot.num_behind; i < slot.table.size(); ++i) --num_namings_[slot.table[i]];
    slots_[released] = Slot();
  }
}

void FakeStepPipe::GiveBlock(uint32_t block, uint32_t slot, bool is_fresh) {
  if (block >= options_.num_blocks) return Violate(absl::StrCat("block ", block));
  if (is_fresh && num_namings_[block] > 0) Violate(absl::StrCat("block ", block, " is in use"));
  for (const InFlight& step : in_flight_) {
    for (const auto& [named, owner] : step.named_blocks) {
      if (is_fresh && named == block) {
        Violate(absl::StrCat("block ", block, " is named in flight by slot ", owner));
      }
    }
  }
  const bool is_behind = slots_[slot].table.size() < slots_[slot].num_behind;
  if (!is_behind) ++num_namings_[block];
  slots_[slot].table.push_back(block);
}

void FakeStepPipe::Append(Slot* slot, uint32_t token) {
  const uint64_t before = slot->fingerprints.empty() ? 0 : slot->fingerprints.back();
  slot->tokens.push_back(token);
  slot->fingerprints.push_back(Fingerprint(before, token));
  slot->is_poisoned |= poisonous_tokens.count(token) > 0;
  slot->is_deadly |= deadly_tokens.count(token) > 0;
  slot->contents.push_back(slot->is_poisoned ? NextNotFinite() : slot->fingerprints.back());
}

void FakeStepPipe::AddSequence(const internal::v1::NewSequence& sequence) {
  if (sequence.slot() >= slots_.size()) return Violate(absl::StrCat("slot ", sequence.slot()));
  Slot& slot = slots_[sequence.slot()];
  if (slot.is_live) return Violate(absl::StrCat("slot ", sequence.slot(), " is taken"));
  slot.is_live = true;
  slot.num_prompt_tokens = sequence.num_prompt_tokens();
  slot.num_computed = sequence.num_computed_tokens();
  slot.sampling = sequence.sampling();
  for (uint32_t token : sequence.token_ids()) Append(&slot, token);
  if (slot.num_prompt_tokens == 0 || slot.num_prompt_tokens > slot.tokens.size() ||
      slot.num_computed >= slot.tokens.size()) {
    Violate("token counts of a new sequence");
  }
  if (sequence.block_tables_size() != 1) return Violate("one KV group");
  slot.num_behind = FirstBlockRead(slot.num_computed);
  uint32_t first_position = 0;
  for (uint32_t block : sequence.block_tables(0).block_ids()) {
    // One that ends inside gets a copy.
    const bool is_full = first_position + options_.block_size <= slot.num_computed;
    GiveBlock(block, sequence.slot(), !is_full);
    first_position += options_.block_size;
  }
  CopyBlock(sequence);
}

void FakeStepPipe::CopyBlock(const internal::v1::NewSequence& sequence) {
  const Slot& slot = slots_[sequence.slot()];
  const uint32_t block_idx = slot.num_computed / options_.block_size;
  const bool ends_inside = slot.num_computed % options_.block_size != 0;
  if (sequence.has_copied_block() != ends_inside) Violate("copied_block");
  if (!ends_inside || !violation_.empty()) return;
  const uint32_t from = sequence.copied_block();
  // Of who runs. Behind its window no row of its own reads the block any more, but the content is
  // there until the block is given to another; what is read of the copy is compared.
  const bool is_held = std::any_of(slots_.begin(), slots_.end(), [&](const Slot& other) {
    return &other != &slot && std::count(other.table.begin(), other.table.end(), from) > 0;
  });
  if (!is_held) Violate("copy of no one's block");
  if (block_idx >= slot.table.size()) Violate("copy to no block");
  if (!violation_.empty()) return;
  // All of it: what is beyond the computed tokens is another sequence's.
  const auto source = contents_.begin() + static_cast<ptrdiff_t>(from) * options_.block_size;
  const ptrdiff_t to = static_cast<ptrdiff_t>(slot.table[block_idx]) * options_.block_size;
  std::copy_n(source, options_.block_size, contents_.begin() + to);
  ++num_blocks_copied_;
}

void FakeStepPipe::AppendBlocks(const internal::v1::StepPlan& plan) {
  int next = 0;
  for (int i = 0; i < plan.appended_slots_size(); ++i) {
    const uint32_t slot = plan.appended_slots(i);
    if (slot >= slots_.size() || !slots_[slot].is_live) return Violate("growth of no sequence");
    for (const internal::v1::NewSequence& sequence : plan.new_sequences()) {
      if (sequence.slot() == slot) Violate("growth of a new sequence");
    }
    for (uint32_t j = 0; j < plan.appended_counts(i); ++j) {
      if (next >= plan.appended_blocks_size()) return Violate("appended_blocks is short");
      GiveBlock(plan.appended_blocks(next++), slot, true);
    }
  }
  if (next != plan.appended_blocks_size()) Violate("appended_blocks is long");
}

void FakeStepPipe::ForceTokens(const internal::v1::StepPlan& plan) {
  for (const internal::v1::ForcedToken& forced : plan.forced_tokens()) {
    if (forced.slot() >= slots_.size() || !slots_[forced.slot()].is_live ||
        forced.token_id() >= options_.vocab_size) {
      return Violate("forced token of no sequence");
    }
    for (const InFlight& step : in_flight_)
      if (step.rows.count(forced.slot()) > 0) return Violate("a forced token is not known");
    Slot& slot = slots_[forced.slot()];
    if (slot.tokens.size() <= slot.num_prompt_tokens ||
        slot.num_computed != slot.tokens.size() - 1) {
      return Violate("forced token that was not sampled");
    }
    slot.tokens.pop_back();
    slot.fingerprints.pop_back();
    slot.contents.pop_back();
    Append(&slot, forced.token_id());
  }
}

void FakeStepPipe::CheckDrafts(const internal::v1::StepPlan& plan) {
  for (const InFlight& step : in_flight_) {
    for (uint32_t slot : plan.row_slots()) {
      if (step.drafted.count(slot) > 0) Violate("a row after a draft whose result has not come");
    }
    for (const internal::v1::Draft& draft : plan.drafts()) {
      if (step.rows.count(draft.slot()) > 0) Violate("a draft after a token that is not known");
    }
  }
  for (const internal::v1::Draft& draft : plan.drafts()) {
    if (draft.token_ids().empty()) Violate("an empty draft");
    for (uint32_t token : draft.token_ids())
      if (token >= options_.vocab_size) Violate("a draft beyond the vocabulary");
  }
}

void FakeStepPipe::ComputeRow(uint32_t slot_idx,
                              uint32_t num_tokens,
                              bool samples,
                              const std::vector<uint32_t>& draft,
                              InFlight* step) {
  if (slot_idx >= slots_.size() || !slots_[slot_idx].is_live) return Violate("row of no sequence");
  Slot& slot = slots_[slot_idx];
  const bool was_poisoned = slot.is_poisoned;
  for (uint32_t token : draft) Append(&slot, token);
  const uint32_t end = slot.num_computed + num_tokens;
  if (num_tokens == 0 || end > slot.tokens.size()) return Violate("row beyond the known tokens");
  step->is_deadly |= slot.is_deadly;
  if (samples != (end == slot.tokens.size())) return Violate("row_samples");
  const uint32_t block_size = options_.block_size;
  if ((end + block_size - 1) / block_size > slot.table.size())
    return Violate("row beyond its table");
  // Blocks are taken only when they are written.
  slot.num_written = std::max(slot.num_written, end);
  if ((slot.num_written + block_size - 1) / block_size < slot.table.size())
    return Violate("block taken early");
  const bool sees_all = options_.window == 0 || slot.num_computed < options_.window;
  const uint32_t first_read = sees_all ? 0 : slot.num_computed - options_.window + 1;
  for (uint32_t i = options_.checks_reads ? first_read : slot.num_computed; i < end; ++i) {
    const uint32_t block = slot.table[i / block_size];
    uint64_t& content = contents_[static_cast<size_t>(block) * block_size + i % block_size];
    if (i < slot.num_computed) {
      if (content != slot.contents[i]) {
        return Violate(absl::StrCat("slot ", slot_idx, " reads a foreign position ", i));
      }
    } else if (num_namings_[block] != 1) {
      return Violate(absl::StrCat("write to shared block ", block));
    } else {
      content = slot.contents[i];
    }
  }
  for (size_t i = slot.num_behind; i < slot.table.size(); ++i) {
    step->named_blocks.emplace_back(slot.table[i], slot_idx);
  }
  AddPromptLogprobs(slot_idx, end, &step->result);
  slot.num_computed = end;
  if (!draft.empty()) {
    // A draft is of what the sequence has said.
    if (slot.is_poisoned != was_poisoned) return Violate("a draft of a token never seen");
    num_drafts_ += draft.size();
    SampleDrafted(slot_idx, draft.size(), &step->result);
  }
  // Where rows of later plans begin.
  for (; slot.num_behind < FirstBlockRead(slot.num_computed); ++slot.num_behind) {
    --num_namings_[slot.table[slot.num_behind]];
  }
  if (!draft.empty()) return;
  if (slot.is_poisoned) {
    step->result.add_failed_slots(slot_idx);
    // The next row's plan counts on a token.
    if (samples) Append(&slot, 0);
  } else if (samples) {
    Sample(slot_idx, &step->result);
  }
}

uint32_t FakeStepPipe::TokenAfter(const Slot& slot, size_t num_tokens) const {
  const uint64_t seed = slot.sampling.seed();
  if (sample) {
    return sample({slot.tokens.begin(), slot.tokens.begin() + static_cast<ptrdiff_t>(num_tokens)},
                  seed);
  }
  return static_cast<uint32_t>(Mix(slot.fingerprints[num_tokens - 1], seed) % options_.vocab_size);
}

void FakeStepPipe::Sample(uint32_t slot_idx, internal::v1::StepResult* result) {
  Slot& slot = slots_[slot_idx];
  const uint32_t token = TokenAfter(slot, slot.tokens.size());
  result->add_sampled_slots(slot_idx);
  if (result->num_tokens_size() > 0) result->add_num_tokens(1);
  AddToken(slot_idx, slot.tokens.size(), token, result);
  Append(&slot, token);
}

void FakeStepPipe::SampleDrafted(uint32_t slot_idx,
                                 size_t num_drafts,
                                 internal::v1::StepResult* result) {
  Slot& slot = slots_[slot_idx];
  size_t num_tokens = slot.tokens.size() - num_drafts;
  // The last token may be poisonous itself: then the next row fails.
  const bool has_failed = slot.is_poisoned;
  if (has_failed) result->add_failed_slots(slot_idx);
  // Sizes of all rows, since this one may have another than 1.
  while (result->num_tokens_size() < result->sampled_slots_size()) result->add_num_tokens(1);
  uint32_t num_given = 0;
  while (true) {
    const uint32_t token = TokenAfter(slot, num_tokens);
    ++num_given;
    if (!has_failed) AddToken(slot_idx, num_tokens, token, result);
    const bool is_right = num_tokens < slot.tokens.size() && slot.tokens[num_tokens] == token;
    if (is_right) {
      ++num_tokens;
      ++num_drafts_accepted_;
      continue;
    }
    slot.tokens.resize(num_tokens);
    slot.fingerprints.resize(num_tokens);
    slot.contents.resize(num_tokens);
    slot.num_computed = static_cast<uint32_t>(num_tokens);
    Append(&slot, token);
    break;
  }
  if (has_failed) return;
  result->add_sampled_slots(slot_idx);
  result->add_num_tokens(num_given);
}

void FakeStepPipe::AddToken(uint32_t slot_idx,
                            size_t num_before,
                            uint32_t token,
                            internal::v1::StepResult* result) {
  const Slot& slot = slots_[slot_idx];
  const uint64_t fingerprint = slot.fingerprints[num_before - 1];
  result->add_token_ids(token);
  if (slot.sampling.has_num_logprobs()) {
    internal::v1::TokenLogprobs* logprobs = result->add_logprobs();
    logprobs->set_slot(slot_idx);
    logprobs->set_logprob(LogprobOf(fingerprint, token));
    logprobs->set_rank(1);
    std::vector<uint32_t> top(slot.sampling.num_logprobs());
    std::iota(top.begin(), top.end(), 0u);
    if (slot.sampling.processed_logprobs()) {
      top.resize(options_.vocab_size);
      std::iota(top.begin(), top.end(), 0u);
      std::stable_sort(top.begin(), top.end(), [&](uint32_t a, uint32_t b) {
        return LogprobOf(fingerprint, a) > LogprobOf(fingerprint, b);
      });
      top.resize(slot.sampling.num_logprobs());
    }
    for (const uint32_t id : top) {
      logprobs->add_top_ids(id);
      logprobs->add_top_logprobs(LogprobOf(fingerprint, id));
    }
  }
}

void FakeStepPipe::AddPromptLogprobs(uint32_t slot_idx,
                                     uint32_t end,
                                     internal::v1::StepResult* result) {
  const Slot& slot = slots_[slot_idx];
  if (!slot.sampling.has_num_prompt_logprobs()) return;
  const uint32_t last = std::min(end, slot.num_prompt_tokens - 1);
  if (slot.num_computed + 1 > last) return;
  internal::v1::PromptLogprobs* part = result->add_prompt_logprobs();
  part->set_slot(slot_idx);
  part->set_first_position(slot.num_computed + 1);
  part->set_num_top(slot.sampling.num_prompt_logprobs());
  for (uint32_t position = slot.num_computed + 1; position <= last; ++position) {
    part->add_logprobs(LogprobOf(slot.fingerprints[position - 1], slot.tokens[position]));
    part->add_ranks(position);
    for (uint32_t i = 0; i < part->num_top(); ++i) {
      part->add_top_ids(i);
      part->add_top_logprobs(LogprobOf(slot.fingerprints[position - 1], i));
    }
  }
}

absl::StatusOr<bool> FakeStepPipe::Poll(internal::v1::StepResult* result) {
  if (fault.has_value()) return *fault;
  if (!is_ready() && num_failing_starts > 0) {
    --num_failing_starts;
    fault_cause = parallel::WorkerFailure::Cause::kStart;
    fault = absl::UnavailableError("did not start");
    return *fault;
  }
  is_ready_ = num_waits_to_ready_ == 0;
  if (num_ready_ == 0 || in_flight_.empty()) return false;
  if (in_flight_.front().is_deadly) {
    fault_cause = parallel::WorkerFailure::Cause::kCrashed;
    fault = absl::UnavailableError("crashed");
    return *fault;
  }
  --num_ready_;
  *result = std::move(in_flight_.front().result);
  in_flight_.pop_front();
  return true;
}

void FakeStepPipe::Wait(int, int64_t) {
  if (num_waits_to_ready_ > 0) --num_waits_to_ready_;
  if (!is_stuck && num_ready_ < in_flight_.size()) ++num_ready_;
  if (on_wait) on_wait();
}

parallel::WorkerFailure FakeStepPipe::failure() const {
  return {.cause = fault_cause,
          .operation = "step",
          .step_id = in_flight_.empty() ? 0 : in_flight_.front().result.step_id(),
          .status = fault.value_or(absl::InternalError("no fault"))};
}

void FakeStepPipe::Restart(int64_t) {
  fault.reset();
  fault_cause = parallel::WorkerFailure::Cause::kKilled;
  slots_.assign(slots_.size(), Slot());
  contents_.assign(contents_.size(), 0);
  num_namings_.assign(num_namings_.size(), 0);
  in_flight_.clear();
  num_ready_ = 0;
  last_step_id_ = 0;
  ++num_restarts_;
  is_ready_ = false;
  num_waits_to_ready_ = std::max(num_waits_to_restart, num_failing_starts > 0 ? 1 : 0);
}

}  // namespace pagoda::engine
