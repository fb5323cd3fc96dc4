#include "engine/step_applier.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/errors.h"

namespace pagoda::engine {
namespace {

using internal::v1::StepResult;

// Rows are few and this is asked rarely (prompt log-probabilities, failures), so no map is kept.
Sequence* SequenceOfSlot(const ScheduledStep& step, uint32_t slot) {
  for (const ScheduledRow& row : step.rows) {
    if (row.slot == SlotId(slot)) return row.sequence;
  }
  return nullptr;
}

bool Contains(const google::protobuf::RepeatedField<uint32_t>& slots, uint32_t slot) {
  return std::find(slots.begin(), slots.end(), slot) != slots.end();
}

// Nothing was sampled.
bool IsFailed(const StepResult& result, uint32_t slot) {
  return Contains(result.failed_slots(), slot) || Contains(result.stuck_slots(), slot);
}

void CopyTop(const google::protobuf::RepeatedField<uint32_t>& ids,
             const google::protobuf::RepeatedField<float>& logprobs,
             int begin,
             int count,
             std::vector<TokenLogprobs::Entry>* out) {
  count = std::min(count, std::min(ids.size(), logprobs.size()) - begin);
  for (int i = begin; i < begin + count; ++i) {
    out->push_back({.token = static_cast<TokenId>(ids[i]), .logprob = logprobs[i]});
  }
}

// Positions come in order, chunk by chunk; after a preemption some come again.
void StorePromptLogprobs(const internal::v1::PromptLogprobs& part, LiveRequest* live) {
  const int num_top = static_cast<int>(part.num_top());
  for (int i = 0; i < std::min(part.logprobs_size(), part.ranks_size()); ++i) {
    const int64_t position = static_cast<int64_t>(part.first_position()) + i;
    if (position != live->num_prompt_logprobs_known + 1 || position >= live->num_prompt_tokens) {
      continue;
    }
    TokenLogprobs& entry = live->prompt_logprobs[position];
    entry.token.logprob = part.logprobs(i);
    entry.rank = static_cast<int32_t>(part.ranks(i));
    CopyTop(part.top_ids(), part.top_logprobs(), i * num_top, num_top, &entry.top);
    ++live->num_prompt_logprobs_known;
  }
}

}  // namespace

absl::Status StepApplier::Apply(const ScheduledStep& step,
                                const StepResult& result,
                                int64_t now_ns) {
  if (absl::Status status = CheckShape(step, result); !status.ok()) return status;
  if (result.prompt_logprobs_size() > 0) TakePromptLogprobs(step, result);
  // Before anything is retired, so that no block of theirs is published.
  if (result.failed_slots_size() > 0) FailRows(step, result, now_ns);
  if (result.stuck_slots_size() > 0) EndStuckRows(step, result, now_ns);
  outputs_->Reserve(step.rows.size());
  Cursor cursor;
  for (size_t i = 0; i < step.rows.size(); ++i) {
    if (i + kPrefetchDistance < step.rows.size()) {
      PrefetchSequence(step.rows[i + kPrefetchDistance].sequence);
    }
    // That sequence came half the distance ago. In full flow every row has one token.
    const int ahead = cursor.token + static_cast<int>(kPrefetchDistance / 2);
    if (i + kPrefetchDistance / 2 < step.rows.size() && ahead < result.token_ids_size()) {
      const auto id = static_cast<TokenId>(result.token_ids(ahead));
      step.rows[i + kPrefetchDistance / 2].sequence->stop_checker.Prefetch(id);
    }
    const ScheduledRow& row = step.rows[i];
    scheduler_->RetireRow(row);
    if (row.is_prefill || row.sequence->output.empty()) CompletePrompt(row, now_ns);
    if (!row.samples) continue;
    // A slot may have failed at a prompt position and still have a sample, which nobody reads.
    const bool is_next = cursor.sampled < result.sampled_slots_size() &&
                         result.sampled_slots(cursor.sampled) == row.slot.value();
    if (!is_next && IsFailed(result, row.slot.value())) continue;
    if (absl::Status status = ApplySample(row, result, now_ns, &cursor); !status.ok()) {
      return status;
    }
  }
  if (cursor.sampled != result.sampled_slots_size()) {
    return BadStepResultError(
        step.id.value(), "size of sampled_slots", result.sampled_slots_size(), cursor.sampled);
  }
  FlushInterToken();
  metrics_->generation_tokens.Add(std::exchange(num_generated_, 0));
  return absl::OkStatus();
}

absl::Status StepApplier::CheckShape(const ScheduledStep& step, const StepResult& result) const {
  const uint64_t id = step.id.value();
  if (result.step_id() != id) return BadStepResultError(id, "step_id", result.step_id(), id);
  const int num_sampled = result.sampled_slots_size();
  if (result.num_tokens_size() != 0 && result.num_tokens_size() != num_sampled) {
    return BadStepResultError(id, "size of num_tokens", result.num_tokens_size(), num_sampled);
  }
  int64_t num_tokens = result.num_tokens_size() == 0 ? num_sampled : 0;
  for (uint32_t n : result.num_tokens()) num_tokens += n;
  if (result.token_ids_size() != num_tokens) {
    return BadStepResultError(id, "size of token_ids", result.token_ids_size(), num_tokens);
  }
  return absl::OkStatus();
}

void StepApplier::TakePromptLogprobs(const ScheduledStep& step, const StepResult& result) {
  for (const internal::v1::PromptLogprobs& part : result.prompt_logprobs()) {
    Sequence* const sequence = SequenceOfSlot(step, part.slot());
    if (sequence == nullptr || sequence->state == SequenceState::kEnded) continue;
    LiveRequest* const live = sequence->request;
    if (live->prompt_logprobs.empty()) continue;
    StorePromptLogprobs(part, live);
  }
}

void StepApplier::FailRows(const ScheduledStep& step, const StepResult& result, int64_t now_ns) {
  for (uint32_t slot : result.failed_slots()) {
    Sequence* const sequence = SequenceOfSlot(step, slot);
    if (sequence == nullptr) continue;
    LiveRequest* const live = sequence->request;
    for (Sequence& sibling : live->sequences) blocks_->Poison(&sibling);
    if (!live->has_ended()) Abort(live, FinishReason::kError, NonFiniteLogitsError(), now_ns);
  }
}

void StepApplier::EndStuckRows(const ScheduledStep& step,
                               const StepResult& result,
                               int64_t now_ns) {
  for (uint32_t slot : result.stuck_slots()) {
    Sequence* const sequence = SequenceOfSlot(step, slot);
    // One that has ended in the meantime has nothing to follow anyway.
    if (sequence == nullptr || sequence->state == SequenceState::kEnded) continue;
    Abort(sequence->request, FinishReason::kError, StuckConstraintError(), now_ns);
  }
}

absl::Status StepApplier::ApplySample(const ScheduledRow& row,
                                      const StepResult& result,
                                      int64_t now_ns,
                                      Cursor* cursor) {
  const uint32_t slot = row.slot.value();
  if (cursor->sampled >= result.sampled_slots_size()) {
    return BadStepResultError(
        result.step_id(), "size of sampled_slots", cursor->sampled, cursor->sampled + 1);
  }
  if (result.sampled_slots(cursor->sampled) != slot) {
    return BadStepResultError(
        result.step_id(), "sampled slot", result.sampled_slots(cursor->sampled), slot);
  }
  const int num_tokens =
      result.num_tokens_size() == 0 ? 1 : static_cast<int>(result.num_tokens(cursor->sampled));
  Sample sample = {.result = &result, .first_token = cursor->token, .num_tokens = num_tokens};
  sample.is_complete = Contains(result.complete_slots(), slot);
  if (cursor->logprobs < result.logprobs_size() &&
      result.logprobs(cursor->logprobs).slot() == slot) {
    if (result.logprobs_size() - cursor->logprobs < num_tokens) {
      return BadStepResultError(result.step_id(),
                                "size of logprobs",
                                result.logprobs_size(),
                                cursor->logprobs + num_tokens);
    }
    sample.first_logprobs = cursor->logprobs;
    cursor->logprobs += num_tokens;
  }
  if (num_tokens < 1 || num_tokens > 1 + row.num_drafts) {
    return BadStepResultError(result.step_id(), "num_tokens", num_tokens, 1 + row.num_drafts);
  }
  ++cursor->sampled;
  cursor->token += num_tokens;
  // Seen one step late: the sequence had ended when this row was in flight already.
  if (row.sequence->is_beam) return TakeBeam(row.sequence, sample, now_ns);
  if (row.sequence->state != SequenceState::kEnded) AddTokens(row.sequence, sample, now_ns);
  if (row.sequence->drafter != nullptr) ConcludeDrafts(row, num_tokens - 1);
  return absl::OkStatus();
}

absl::Status StepApplier::TakeBeam(Sequence* sequence, const Sample& sample, int64_t now_ns) {
  if (sequence->state == SequenceState::kEnded) return absl::OkStatus();
  if (sample.first_logprobs < 0) {
    return BadStepResultError(sample.result->step_id(), "log-probabilities of a beam", 0, 1);
  }
  const internal::v1::TokenLogprobs& logprobs = sample.result->logprobs(sample.first_logprobs);
  std::vector<TokenLogprobs::Entry> next;
  CopyTop(logprobs.top_ids(), logprobs.top_logprobs(), 0, logprobs.top_ids_size(), &next);
  // Ids that are masked fill a list that is longer than what is left.
  next.erase(std::remove_if(next.begin(),
                            next.end(),
                            [](const auto& entry) { return !std::isfinite(entry.logprob); }),
             next.end());
  ++num_generated_;
  scheduler_->Hold(sequence);
  LiveRequest* const live = sequence->request;
  if (live->beams->Take(sequence->index, std::move(next))) AdvanceBeams(live, now_ns);
  return absl::OkStatus();
}

void StepApplier::AdvanceBeams(LiveRequest* live, int64_t now_ns) {
  const std::vector<BeamSearch::Child> children = live->beams->Advance();
  if (children.empty()) return FinishBeams(live, now_ns);
  for (const BeamSearch::Child& child : children) {
    Sequence& sequence = live->sequences[child.index];
    if (child.index == child.parent) {
      sequence.output.push_back(child.token);
      scheduler_->Resume(&sequence);
      continue;
    }
    // Before its parent goes on.
    const Sequence& parent = live->sequences[child.parent];
    scheduler_->Suspend(&sequence);
    sequence.output = parent.output;
    sequence.output.push_back(child.token);
    scheduler_->Follow(&sequence, parent);
  }
  for (Sequence& sequence : live->sequences) {
    if (!live->beams->is_open(sequence.index)) scheduler_->Suspend(&sequence);
  }
}

void StepApplier::FinishBeams(LiveRequest* live, int64_t now_ns) {
  const std::vector<BeamSearch::Ended>& ended = live->beams->ended();
  for (size_t i = 0; i < live->sequences.size(); ++i) {
    Sequence& sequence = live->sequences[i];
    StopMatch match = {.reason = FinishReason::kLength};
    sequence.output = TokenList();
    if (i < ended.size()) {
      OutputDelta& delta = outputs_->Open(&sequence, now_ns);
      NoteTokens(&sequence, ended[i].num_tokens, now_ns);
      unwanted_text_.clear();
      std::string* const text = sequence.wants_text ? &delta.text : &unwanted_text_;
      for (TokenLogprobs& logprobs : live->beams->TokensOf(ended[i])) {
        const TokenId id = logprobs.token.token;
        sequence.output.push_back(id);
        delta.tokens.push_back(id);
        if (sequence.wants_logprobs) delta.logprobs.push_back(std::move(logprobs));
        sequence.stop_checker.Accept(id, static_cast<int32_t>(sequence.output.size()), text);
      }
      // Nothing is left where a stop rule ended it.
      sequence.stop_checker.Flush(text);
      sequence.sum_logprob = ended[i].score;
      match = ended[i].match;
    }
    scheduler_->End(&sequence);
    outputs_->Finish(&sequence, {.match = std::move(match)}, now_ns);
  }
}

void StepApplier::ConcludeDrafts(const ScheduledRow& row, int32_t num_accepted) {
  Sequence* const sequence = row.sequence;
  if (row.num_drafts > 0) {
    metrics_->spec_drafts.Add(1);
    metrics_->spec_draft_tokens.Add(row.num_drafts);
    metrics_->spec_accepted_tokens.Add(num_accepted);
    scheduler_->KeepDrafts(sequence, num_accepted);
    sequence->drafter->NoteResult(row.num_drafts, num_accepted);
  }
  if (sequence->state != SequenceState::kEnded) sequence->drafter->Propose();
}

void StepApplier::AddTokens(Sequence* sequence, const Sample& sample, int64_t now_ns) {
  OutputDelta& delta = outputs_->Open(sequence, now_ns);
  NoteTokens(sequence, sample.num_tokens, now_ns);
  for (int i = 0; i < sample.num_tokens; ++i) {
    const TokenId id = static_cast<TokenId>(sample.result->token_ids(sample.first_token + i));
    sequence->output.push_back(id);
    scheduler_->AddKnownToken(sequence);
    if (sequence->drafter != nullptr) sequence->drafter->Add(id);
    ++num_generated_;
    delta.tokens.push_back(id);
    if (sample.first_logprobs >= 0) {
      AddLogprobs(sequence, id, sample.result->logprobs(sample.first_logprobs + i), &delta);
    }
    unwanted_text_.clear();
    std::string* const text = sequence->wants_text ? &delta.text : &unwanted_text_;
    const int32_t num_output_tokens = static_cast<int32_t>(sequence->output.size());
    auto match = sequence->stop_checker.Accept(id, num_output_tokens, text);
    if (!match.has_value()) continue;
    // Further tokens of this step begin after the end.
    scheduler_->End(sequence);
    outputs_->Finish(sequence, {.match = *std::move(match)}, now_ns);
    return;
  }
  if (!sample.is_complete) return;
  sequence->stop_checker.Flush(sequence->wants_text ? &delta.text : &unwanted_text_);
  scheduler_->End(sequence);
  outputs_->Finish(sequence, {.match = {.reason = FinishReason::kStop}}, now_ns);
}

void StepApplier::AddLogprobs(Sequence* sequence,
                              TokenId id,
                              const internal::v1::TokenLogprobs& logprobs,
                              OutputDelta* delta) {
  sequence->sum_logprob += logprobs.logprob();
  if (!sequence->wants_logprobs) return;
  TokenLogprobs& entry = delta->logprobs.emplace_back();
  entry.token = {.token = id, .logprob = logprobs.logprob()};
  entry.rank = static_cast<int32_t>(logprobs.rank());
  CopyTop(logprobs.top_ids(), logprobs.top_logprobs(), 0, logprobs.top_ids_size(), &entry.top);
}

void StepApplier::CompletePrompt(const ScheduledRow& row, int64_t now_ns) {
  LiveRequest* const live = row.sequence->request;
  if (live->prompt_is_done || row.sequence->state == SequenceState::kEnded) return;
  if (row.computed_end < live->num_prompt_tokens - (live->is_prompt_only ? 1 : 0)) return;
  CompletePrompt(live, now_ns);
}

void StepApplier::CompletePrompt(LiveRequest* live, int64_t now_ns) {
  live->prompt_is_done = true;
  metrics_->prompt_tokens_cached.Add(live->num_cached_tokens);
  metrics_->prompt_tokens_computed.Add(live->num_prompt_tokens - live->num_cached_tokens);
  metrics_->prefill_seconds.ObserveNs(now_ns - live->scheduled_ns);
  for (Sequence& sequence : live->sequences) {
    if (sequence.state == SequenceState::kEnded) continue;
    if (live->is_prompt_only) {
      EndExhausted(&sequence, now_ns);
    } else if (sequence.state == SequenceState::kIdle && !sequence.is_beam) {
      scheduler_->Enqueue(&sequence);
    }
  }
}

void StepApplier::EndExhausted(Sequence* sequence, int64_t now_ns) {
  LiveRequest* const live = sequence->request;
  if (sequence->is_beam) {
    live->beams->EndAll();
    return FinishBeams(live, now_ns);
  }
  scheduler_->End(sequence);
  outputs_->Finish(sequence, {.match = {.reason = FinishReason::kLength}}, now_ns);
  // A prompt of which nothing had to be computed is done as well.
  if (live->is_prompt_only && !live->prompt_is_done) CompletePrompt(live, now_ns);
}

void StepApplier::Abort(LiveRequest* live,
                        FinishReason reason,
                        const absl::Status& status,
                        int64_t now_ns) {
  for (Sequence& sequence : live->sequences) {
    if (sequence.state == SequenceState::kEnded) continue;
    scheduler_->End(&sequence);
    outputs_->Finish(&sequence, {.match = {.reason = reason}, .status = status}, now_ns);
  }
}

void StepApplier::NoteTokens(Sequence* sequence, int64_t num_tokens, int64_t now_ns) {
  if (sequence->first_token_ns == 0) {
    LiveRequest* const live = sequence->request;
    sequence->first_token_ns = now_ns;
    if (live->first_token_ns == 0) {
      live->first_token_ns = now_ns;
      metrics_->time_to_first_token_seconds.ObserveNs(now_ns - live->request.arrival_ns);
    }
  } else {
    const int64_t gap_ns = (now_ns - sequence->last_token_ns) / std::max<int64_t>(num_tokens, 1);
    if (gap_ns != gap_ns_) FlushInterToken();
    gap_ns_ = gap_ns;
    num_gaps_ += num_tokens;
  }
  sequence->last_token_ns = now_ns;
}

void StepApplier::FlushInterToken() {
  if (num_gaps_ > 0) metrics_->inter_token_seconds.ObserveNs(gap_ns_, num_gaps_);
  num_gaps_ = 0;
}

}  // namespace pagoda::engine
