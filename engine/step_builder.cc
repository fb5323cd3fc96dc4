#include "engine/step_builder.h"

#include <algorithm>

#include "engine/guided/constraint.h"
#include "engine/guided_vocabulary.h"

namespace pagoda::engine {
namespace {

template <typename Ids>
void AddIds(const Ids& ids, google::protobuf::RepeatedField<uint32_t>* out) {
  out->Reserve(out->size() + static_cast<int>(ids.size()));
  for (size_t i = 0; i < ids.size(); ++i) out->AddAlreadyReserved(static_cast<uint32_t>(ids[i]));
}

// EOS and stop ids, each once. A tokenizer may name an EOS beyond the model's vocabulary; that is
// never sampled.
void AddMaskedIds(const StopParams& stop,
                  int32_t vocab_size,
                  google::protobuf::RepeatedField<uint32_t>* out) {
  std::vector<TokenId> ids = stop.eos_token_ids;
  ids.insert(ids.end(), stop.stop_token_ids.begin(), stop.stop_token_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  ids.erase(std::lower_bound(ids.begin(), ids.end(), vocab_size), ids.end());
  AddIds(ids, out);
}

void SetLogprobs(const Sequence& sequence, int32_t vocab_size, internal::v1::RowSampling* out) {
  const LiveRequest& live = *sequence.request;
  const SamplingParams& sampling = live.request.sampling;
  if (sequence.is_beam) {
    const StopRules& rules = live.stop_rules;
    const int32_t num_top = BeamSearch::NumTop(
        *sampling.beams, rules.eos_token_ids.size() + rules.stop_token_ids.size());
    out->set_num_logprobs(static_cast<uint32_t>(std::min(num_top, vocab_size)));
  } else if (sampling.num_logprobs.has_value()) {
    out->set_num_logprobs(static_cast<uint32_t>(*sampling.num_logprobs));
  } else if (live.ranks_draws) {
    out->set_num_logprobs(0);  // the sampled token's own: draws are ranked by it
  }
  // Once for the request, and not again after a preemption.
  if (sequence.index == 0 && !live.has_prompt_logprobs()) {
    out->set_num_prompt_logprobs(static_cast<uint32_t>(*sampling.num_prompt_logprobs));
  }
  out->set_processed_logprobs(sampling.processed_logprobs || sequence.is_beam);
}

// Ids that end the sequence and are no text.
void AddEndIds(const StopParams& stop,
               const Tokenizer& tokenizer,
               int32_t vocab_size,
               google::protobuf::RepeatedField<uint32_t>* out) {
  std::vector<TokenId> ids;
  if (!stop.ignore_eos) ids = stop.eos_token_ids;
  for (const TokenId id : stop.stop_token_ids)
    if (tokenizer.IsSpecial(id)) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  ids.erase(std::lower_bound(ids.begin(), ids.end(), vocab_size), ids.end());
  AddIds(ids, out);
}

void SetThoughts(const ThoughtBudget& budget, internal::v1::ThoughtBudget* out) {
  out->set_max_tokens(static_cast<uint32_t>(budget.max_tokens));
  out->set_is_open(budget.is_open);
  for (const ThoughtTags& tags : budget.tags) {
    internal::v1::ThoughtTags* const each = out->add_tags();
    each->set_open(tags.open);
    each->set_close(tags.close);
    if (tags.open_id.has_value()) each->set_open_token_id(static_cast<uint32_t>(*tags.open_id));
    AddIds(tags.close_ids, each->mutable_close_token_ids());
  }
}

}  // namespace

void StepBuilder::SetSampling(const Sequence& sequence, internal::v1::RowSampling* out) const {
  const SamplingParams& sampling = sequence.request->request.sampling;
  // Beams are not sampled: neutral, so that processed log-probabilities are those of the logits
  // after masks, bias and penalties.
  const SamplingParams neutral;
  const SamplingParams& draw = sequence.is_beam ? neutral : sampling;
  out->set_temperature(draw.temperature);
  out->set_top_p(draw.top_p);
  out->set_top_k(static_cast<uint32_t>(draw.top_k));
  out->set_min_p(draw.min_p);
  out->set_typical_p(draw.typical_p);
  out->set_repetition_penalty(sampling.repetition_penalty);
  out->set_frequency_penalty(sampling.frequency_penalty);
  out->set_presence_penalty(sampling.presence_penalty);
  out->set_seed(sampling.seed + static_cast<uint64_t>(sequence.index));
  for (const auto& [id, bias] : sampling.logit_bias) {
    out->add_bias_token_ids(static_cast<uint32_t>(id));
    out->add_bias_values(bias);
  }
  AddIds(sampling.allowed_token_ids, out->mutable_allowed_token_ids());
  for (const std::vector<TokenId>& word : sampling.bad_words) {
    AddIds(word, out->add_bad_words()->mutable_token_ids());
  }
  const StopParams& stop = sequence.request->request.stop;
  if (stop.min_tokens > 0) {
    out->set_min_tokens(static_cast<uint32_t>(stop.min_tokens));
    AddMaskedIds(stop, vocab_size_, out->mutable_min_tokens_masked_ids());
  }
  if (sampling.constraint != nullptr && tokenizer_ != nullptr) {
    internal::v1::OutputConstraint* const constraint = out->mutable_constraint();
    constraint->set_name(sampling.constraint->name);
    constraint->set_automaton(sampling.constraint->automaton);
    AddEndIds(stop, *tokenizer_, vocab_size_, constraint->mutable_end_token_ids());
  }
  if (sampling.thoughts != nullptr && tokenizer_ != nullptr)
    SetThoughts(*sampling.thoughts, out->mutable_thoughts());
  SetLogprobs(sequence, vocab_size_, out);
}

void StepBuilder::SetNewSequence(const Admission& admission, internal::v1::NewSequence* out) {
  const Sequence& sequence = *admission.sequence;
  const LiveRequest& live = *sequence.request;
  out->set_slot(sequence.slot->value());
  AddIds(live.request.prompt, out->mutable_token_ids());
  AddIds(sequence.output, out->mutable_token_ids());
  out->set_num_prompt_tokens(static_cast<uint32_t>(live.num_prompt_tokens));
  out->set_num_computed_tokens(static_cast<uint32_t>(admission.num_computed_tokens));
  if (admission.copied_block.has_value()) out->set_copied_block(admission.copied_block->value());
  for (const BlockTable& table : sequence.tables) {
    auto* block_ids = out->add_block_tables()->mutable_block_ids();
    block_ids->Reserve(static_cast<int>(table.size()));
    for (BlockId block : table) block_ids->AddAlreadyReserved(block.value());
  }
  SetSampling(sequence, out->mutable_sampling());
  const bool needs_vocabulary = out->sampling().has_constraint() || out->sampling().has_thoughts();
  if (!needs_vocabulary || has_sent_vocabulary_ || vocabulary_ == nullptr) return;
  plan_.set_vocabulary(vocabulary_->bytes());
  has_sent_vocabulary_ = true;
}

const internal::v1::StepPlan& StepBuilder::Build(const ScheduledStep& step) {
  plan_.Clear();
  plan_.set_step_id(step.id.value());
  if (step.id.value() == 1) has_sent_vocabulary_ = false;  // a worker that knows nothing
  for (SlotId slot : step.released_slots) plan_.add_released_slots(slot.value());
  for (const Admission& admission : step.admitted) {
    SetNewSequence(admission, plan_.add_new_sequences());
  }
  for (const BlockGrowth& growth : step.growth) {
    const BlockTable& table = growth.sequence->tables[growth.group];
    plan_.add_appended_slots(growth.sequence->slot->value());
    plan_.add_appended_counts(static_cast<uint32_t>(table.size()) - growth.first);
    if (kNumKvGroups > 1) plan_.add_appended_groups(growth.group);
    for (size_t i = growth.first; i < table.size(); ++i)
      plan_.add_appended_blocks(table[i].value());
  }
  const int num_rows = static_cast<int>(step.rows.size());
  plan_.mutable_row_slots()->Reserve(num_rows);
  plan_.mutable_row_num_tokens()->Reserve(num_rows);
  plan_.mutable_row_samples()->Reserve(num_rows);
  for (const ScheduledRow& row : step.rows) {
    if (row.forces_token) {
      internal::v1::ForcedToken* const forced = plan_.add_forced_tokens();
      forced->set_slot(row.slot.value());
      forced->set_token_id(
          static_cast<uint32_t>(TokenAt(*row.sequence, row.sequence->num_known_tokens - 1)));
    }
    if (row.num_drafts > 0) {
      internal::v1::Draft* const draft = plan_.add_drafts();
      draft->set_slot(row.slot.value());
      AddIds(row.sequence->drafter->draft().first(row.num_drafts), draft->mutable_token_ids());
    }
    plan_.mutable_row_slots()->AddAlreadyReserved(row.slot.value());
    plan_.mutable_row_num_tokens()->AddAlreadyReserved(static_cast<uint32_t>(row.num_tokens));
    plan_.mutable_row_samples()->AddAlreadyReserved(row.samples ? 1 : 0);
  }
  return plan_;
}

}  // namespace pagoda::engine
