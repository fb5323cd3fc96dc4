#include "engine/model/slot_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

using internal::v1::NewSequence;
using internal::v1::RowSampling;
using internal::v1::StepPlan;

template <typename... Args>
absl::Status Broken(const Args&... args) {
  return absl::InternalError(absl::StrCat("step plan: ", args...));
}

template <typename Ids>
absl::Status CheckIds(const Ids& ids, int32_t vocab_size, const char* field) {
  for (uint32_t id : ids) {
    if (id >= static_cast<uint32_t>(vocab_size)) {
      return Broken(field, " holds ", id, "; expected ids below ", vocab_size);
    }
  }
  return absl::OkStatus();
}

}  // namespace

SlotTable::SlotTable(const StepLimits& limits)
    : limits_(limits),
      slots_(static_cast<size_t>(limits.num_slots)),
      last_row_step_(static_cast<size_t>(limits.num_slots), 0) {}

absl::StatusOr<absl::Span<const StepRow>> SlotTable::Apply(const StepPlan& plan) {
  if (plan.step_id() != last_step_id_ + 1) {
    return Broken("step_id is ", plan.step_id(), "; expected ", last_step_id_ + 1);
  }
  last_step_id_ = plan.step_id();
  for (uint32_t slot_idx : plan.released_slots()) PAGODA_RETURN_IF_ERROR(Release(slot_idx));
  PAGODA_RETURN_IF_ERROR(AppendBlocks(plan));
  for (const internal::v1::ForcedToken& forced : plan.forced_tokens()) {
    PAGODA_RETURN_IF_ERROR(Force(forced));
  }
  block_copies_.clear();
  for (const NewSequence& sequence : plan.new_sequences()) PAGODA_RETURN_IF_ERROR(Start(sequence));
  if (plan.row_num_tokens_size() != plan.row_slots_size() ||
      plan.row_samples_size() != plan.row_slots_size()) {
    return Broken("row_slots, row_num_tokens and row_samples have ",
                  plan.row_slots_size(),
                  ", ",
                  plan.row_num_tokens_size(),
                  " and ",
                  plan.row_samples_size(),
                  " entries; expected the same");
  }
  rows_.clear();
  int64_t step_tokens = 0;
  int num_drafts = 0;
  for (int i = 0; i < plan.row_slots_size(); ++i) {
    PAGODA_RETURN_IF_ERROR(AddRow(plan, i, &num_drafts));
    step_tokens += rows_.back().num_tokens;
  }
  if (num_drafts != plan.drafts_size()) {
    return Broken("drafts holds slot ",
                  plan.drafts(num_drafts).slot(),
                  ", which has no row after those of the drafts before");
  }
  if (step_tokens > limits_.max_step_tokens) {
    return Broken(
        "its rows have ", step_tokens, " tokens; expected at most ", limits_.max_step_tokens);
  }
  return absl::MakeConstSpan(rows_);
}

void SlotTable::AppendKnownToken(int32_t slot_idx, uint64_t generation, TokenId token) {
  SlotState& slot = slots_[static_cast<size_t>(slot_idx)];
  if (slot.live && slot.generation == generation) slot.tokens.push_back(token);
}

bool SlotTable::AcceptDrafted(int32_t slot_idx,
                              uint64_t generation,
                              int32_t position,
                              TokenId token) {
  SlotState& slot = slots_[static_cast<size_t>(slot_idx)];
  if (!slot.live || slot.generation != generation) return false;
  const int32_t num_known = static_cast<int32_t>(slot.tokens.size());
  // What was sampled after the whole draft is at num_tokens.
  const int32_t first = slot.num_tokens - 1 - static_cast<int32_t>(slot.draft.size());
  const bool is_accepted =
      position == num_known &&
      (position == first ||
       slot.tokens.back() == slot.draft[static_cast<size_t>(position - 1 - first)]);
  if (is_accepted) slot.tokens.push_back(token);
  if (position < slot.num_tokens - 1) return is_accepted;
  slot.num_tokens = static_cast<int32_t>(slot.tokens.size());
  slot.num_computed_tokens = slot.num_tokens - 1;
  slot.draft.clear();
  return is_accepted;
}

void SlotTable::Reset() {
  for (SlotState& slot : slots_) slot = SlotState{.generation = slot.generation};
  last_row_step_.assign(last_row_step_.size(), 0);
  last_step_id_ = 0;
}

absl::StatusOr<SlotState*> SlotTable::LiveSlot(uint32_t slot_idx, const char* field) {
  if (slot_idx >= slots_.size()) {
    return Broken(field, " holds ", slot_idx, "; expected slots below ", slots_.size());
  }
  SlotState& slot = slots_[slot_idx];
  if (!slot.live) return Broken(field, " holds slot ", slot_idx, ", which has no sequence");
  return &slot;
}

absl::Status SlotTable::Release(uint32_t slot_idx) {
  PAGODA_ASSIGN_OR_RETURN(SlotState * slot, LiveSlot(slot_idx, "released_slots"));
  slot->live = false;
  slot->tokens.clear();
  slot->draft.clear();
  slot->blocks.clear();
  return absl::OkStatus();
}

absl::Status SlotTable::AddBlock(SlotState& slot, uint32_t block, const char* field) {
  if (block >= static_cast<uint32_t>(limits_.num_blocks)) {
    return Broken(field, " holds ", block, "; expected blocks below ", limits_.num_blocks);
  }
  if (slot.blocks.size() >= static_cast<size_t>(limits_.max_blocks_per_sequence())) {
    return Broken(
        field, " gives a sequence more than ", limits_.max_blocks_per_sequence(), " blocks");
  }
  slot.blocks.push_back(static_cast<int32_t>(block));
  return absl::OkStatus();
}

absl::Status SlotTable::CheckSampling(const RowSampling& sampling) const {
  const int32_t vocab = limits_.vocab_size;
  PAGODA_RETURN_IF_ERROR(CheckIds(sampling.bias_token_ids(), vocab, "bias_token_ids"));
  PAGODA_RETURN_IF_ERROR(CheckIds(sampling.allowed_token_ids(), vocab, "allowed_token_ids"));
  PAGODA_RETURN_IF_ERROR(
      CheckIds(sampling.min_tokens_masked_ids(), vocab, "min_tokens_masked_ids"));
  PAGODA_RETURN_IF_ERROR(CheckIds(sampling.constraint().end_token_ids(), vocab, "end_token_ids"));
  if (sampling.has_thoughts() && sampling.thoughts().tags().empty())
    return Broken("thoughts has no tags");
  for (const internal::v1::ThoughtTags& tags : sampling.thoughts().tags()) {
    if (tags.close().empty() || tags.close_token_ids().empty())
      return Broken("thoughts holds tags without a closing one");
    PAGODA_RETURN_IF_ERROR(CheckIds(tags.close_token_ids(), vocab, "close_token_ids"));
  }
  for (const internal::v1::TokenSequence& word : sampling.bad_words()) {
    if (word.token_ids().empty()) return Broken("bad_words holds an empty word");
    PAGODA_RETURN_IF_ERROR(CheckIds(word.token_ids(), vocab, "bad_words"));
  }
  if (sampling.bias_values_size() != sampling.bias_token_ids_size()) {
    return Broken("bias_values has ",
                  sampling.bias_values_size(),
                  " entries; expected ",
                  sampling.bias_token_ids_size());
  }
  if (sampling.num_logprobs() > static_cast<uint32_t>(vocab) ||
      sampling.num_prompt_logprobs() > static_cast<uint32_t>(vocab)) {
    return Broken("asks for more log-probabilities than the vocabulary of ", vocab);
  }
  return absl::OkStatus();
}

absl::Status SlotTable::Start(const NewSequence& sequence) {
  if (sequence.slot() >= slots_.size()) {
    return Broken(
        "new_sequences holds slot ", sequence.slot(), "; expected slots below ", slots_.size());
  }
  SlotState& slot = slots_[sequence.slot()];
  if (slot.live) {
    return Broken("new_sequences holds slot ", sequence.slot(), ", which has a sequence");
  }
  const uint32_t num_tokens = static_cast<uint32_t>(sequence.token_ids_size());
  if (num_tokens == 0 || num_tokens > static_cast<uint32_t>(limits_.max_model_len)) {
    return Broken(
        "a new sequence has ", num_tokens, " tokens; expected 1 to ", limits_.max_model_len);
  }
  if (sequence.num_prompt_tokens() == 0 || sequence.num_prompt_tokens() > num_tokens ||
      sequence.num_computed_tokens() >= num_tokens) {
    return Broken("a new sequence of ",
                  num_tokens,
                  " tokens has ",
                  sequence.num_prompt_tokens(),
                  " prompt and ",
                  sequence.num_computed_tokens(),
                  " computed tokens");
  }
  if (sequence.adapter_idx() != 0) return Broken("adapter_idx is ", sequence.adapter_idx());
  if (sequence.block_tables_size() > 1) return Broken("a new sequence has more than one KV group");
  PAGODA_RETURN_IF_ERROR(CheckIds(sequence.token_ids(), limits_.vocab_size, "token_ids"));
  PAGODA_RETURN_IF_ERROR(CheckSampling(sequence.sampling()));

  slot.live = true;
  ++slot.generation;
  slot.tokens.assign(sequence.token_ids().begin(), sequence.token_ids().end());
  slot.num_tokens = static_cast<int32_t>(num_tokens);
  slot.num_prompt_tokens = static_cast<int32_t>(sequence.num_prompt_tokens());
  slot.num_computed_tokens = static_cast<int32_t>(sequence.num_computed_tokens());
  slot.blocks.clear();
  slot.sampling = sequence.sampling();
  for (const internal::v1::BlockTable& table : sequence.block_tables()) {
    for (uint32_t block : table.block_ids()) {
      PAGODA_RETURN_IF_ERROR(AddBlock(slot, block, "block_tables"));
    }
  }
  return NoteCopiedBlock(sequence, slot);
}

absl::Status SlotTable::NoteCopiedBlock(const NewSequence& sequence, const SlotState& slot) {
  const bool ends_inside = slot.num_computed_tokens % limits_.block_size != 0;
  if (sequence.has_copied_block() != ends_inside) {
    return Broken("a new sequence has ",
                  slot.num_computed_tokens,
                  " computed tokens in blocks of ",
                  limits_.block_size,
                  ends_inside ? " and no copied_block" : " and a copied_block");
  }
  if (!ends_inside) return absl::OkStatus();
  if (sequence.copied_block() >= static_cast<uint32_t>(limits_.num_blocks)) {
    return Broken("copied_block is ",
                  sequence.copied_block(),
                  "; expected blocks below ",
                  limits_.num_blocks);
  }
  const auto block_idx = static_cast<size_t>(slot.num_computed_tokens / limits_.block_size);
  if (block_idx >= slot.blocks.size()) {
    return Broken(
        "a new sequence of ", slot.blocks.size(), " blocks has no place for copied_block");
  }
  block_copies_.push_back(
      {.from = static_cast<int32_t>(sequence.copied_block()), .to = slot.blocks[block_idx]});
  return absl::OkStatus();
}

absl::Status SlotTable::AppendBlocks(const StepPlan& plan) {
  const int entries = plan.appended_slots_size();
  if (plan.appended_counts_size() != entries ||
      (plan.appended_groups_size() != 0 && plan.appended_groups_size() != entries)) {
    return Broken("appended_slots, appended_counts and appended_groups have ",
                  entries,
                  ", ",
                  plan.appended_counts_size(),
                  " and ",
                  plan.appended_groups_size(),
                  " entries");
  }
  uint32_t next = 0;
  const uint32_t total = static_cast<uint32_t>(plan.appended_blocks_size());
  for (int i = 0; i < entries; ++i) {
    PAGODA_ASSIGN_OR_RETURN(SlotState * slot, LiveSlot(plan.appended_slots(i), "appended_slots"));
    if (plan.appended_groups_size() != 0 && plan.appended_groups(i) != 0) {
      return Broken("appended_groups holds ", plan.appended_groups(i), "; expected 0");
    }
    if (plan.appended_counts(i) > total - next) {
      return Broken("appended_counts add up to more than the ", total, " appended_blocks");
    }
    for (const uint32_t end = next + plan.appended_counts(i); next < end; ++next) {
      PAGODA_RETURN_IF_ERROR(
          AddBlock(*slot, plan.appended_blocks(static_cast<int>(next)), "appended_blocks"));
    }
  }
  if (next != total) {
    return Broken("appended_counts add up to ", next, "; expected ", total, " appended_blocks");
  }
  return absl::OkStatus();
}

absl::Status SlotTable::Force(const internal::v1::ForcedToken& forced) {
  PAGODA_ASSIGN_OR_RETURN(SlotState * slot, LiveSlot(forced.slot(), "forced_tokens"));
  if (forced.token_id() >= static_cast<uint32_t>(limits_.vocab_size)) {
    return Broken(
        "forced_tokens holds ", forced.token_id(), "; expected ids below ", limits_.vocab_size);
  }
  const bool has_sampled = slot->num_tokens > slot->num_prompt_tokens &&
                           slot->num_computed_tokens == slot->num_tokens - 1;
  if (!has_sampled || static_cast<int32_t>(slot->tokens.size()) != slot->num_tokens) {
    return Broken("forced_tokens holds slot ",
                  forced.slot(),
                  ", whose last token is not a known one that it has sampled");
  }
  slot->tokens.back() = static_cast<TokenId>(forced.token_id());
  return absl::OkStatus();
}

absl::Status SlotTable::TakeDraft(const internal::v1::Draft& draft, SlotState* slot) const {
  PAGODA_RETURN_IF_ERROR(CheckIds(draft.token_ids(), limits_.vocab_size, "drafts"));
  if (draft.token_ids().empty()) return Broken("drafts holds an empty draft");
  if (static_cast<int32_t>(slot->tokens.size()) != slot->num_tokens) {
    return Broken("the draft of slot ",
                  draft.slot(),
                  " comes after ",
                  slot->num_tokens,
                  " tokens, of which ",
                  slot->tokens.size(),
                  " are known; expected all");
  }
  slot->draft.assign(draft.token_ids().begin(), draft.token_ids().end());
  return absl::OkStatus();
}

absl::Status SlotTable::AddRow(const StepPlan& plan, int row_idx, int* next_draft) {
  const uint32_t slot_idx = plan.row_slots(row_idx);
  PAGODA_ASSIGN_OR_RETURN(SlotState * slot, LiveSlot(slot_idx, "row_slots"));
  if (std::exchange(last_row_step_[slot_idx], plan.step_id()) == plan.step_id()) {
    return Broken("row_slots holds slot ", slot_idx, " twice");
  }
  if (!slot->draft.empty()) {
    return Broken("row_slots holds slot ", slot_idx, ", whose draft has no result yet");
  }
  if (*next_draft < plan.drafts_size() && plan.drafts(*next_draft).slot() == slot_idx) {
    PAGODA_RETURN_IF_ERROR(TakeDraft(plan.drafts(*next_draft), slot));
    ++*next_draft;
  }
  const uint32_t num_drafts = static_cast<uint32_t>(slot->draft.size());
  const uint32_t known =
      static_cast<uint32_t>(slot->num_tokens - slot->num_computed_tokens) + num_drafts;
  const uint32_t count = plan.row_num_tokens(row_idx);
  if (count == 0 || count > known) {
    return Broken("the row of slot ", slot_idx, " has ", count, " tokens; expected 1 to ", known);
  }
  const bool samples = count == known;
  if (!samples && num_drafts > 0) {
    return Broken("the row of slot ", slot_idx, " has a draft and ends before it");
  }
  if (plan.row_samples(row_idx) != static_cast<uint32_t>(samples)) {
    return Broken("row_samples of slot ",
                  slot_idx,
                  " is ",
                  plan.row_samples(row_idx),
                  "; expected ",
                  samples ? 1 : 0);
  }
  StepRow row = {.slot = static_cast<int32_t>(slot_idx),
                 .first_position = slot->num_computed_tokens,
                 .num_tokens = static_cast<int32_t>(count),
                 .num_drafts = static_cast<int32_t>(num_drafts),
                 .samples = samples};
  if (row.end_position() > limits_.max_model_len ||
      static_cast<int64_t>(slot->blocks.size()) * limits_.block_size < row.end_position()) {
    return Broken("slot ",
                  slot_idx,
                  " reaches position ",
                  row.end_position(),
                  " with ",
                  slot->blocks.size(),
                  " blocks of ",
                  limits_.block_size,
                  " tokens and a context of ",
                  limits_.max_model_len);
  }
  slot->num_computed_tokens = row.end_position();
  if (samples) slot->num_tokens += 1 + static_cast<int32_t>(num_drafts);
  rows_.push_back(row);
  return absl::OkStatus();
}

}  // namespace pagoda::engine
