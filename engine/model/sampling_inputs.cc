#include "engine/model/sampling_inputs.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

using internal::v1::RowSampling;

bool HasPenalties(const RowSampling& sampling) {
  return sampling.repetition_penalty() != 1.0f || sampling.frequency_penalty() != 0.0f ||
         sampling.presence_penalty() != 0.0f;
}

// True if `word` would be complete with its last token at the row's position.
bool IsOneTokenShort(const internal::v1::TokenSequence& word,
                     const LogitRow& row,
                     const SlotState& slot) {
  const size_t num_before = static_cast<size_t>(word.token_ids_size()) - 1;
  const size_t num_drafts = static_cast<size_t>(row.num_drafts_before);
  const size_t end =
      row.is_prompt ? static_cast<size_t>(row.position) : slot.tokens.size() + num_drafts;
  if (end < num_before) return false;
  for (size_t i = 0; i < num_before; ++i) {
    const size_t at = end - num_before + i;
    const TokenId token =
        at < slot.tokens.size() ? slot.tokens[at] : slot.draft[at - slot.tokens.size()];
    if (static_cast<uint32_t>(token) != word.token_ids(static_cast<int>(i))) return false;
  }
  return true;
}

}  // namespace

bool NeedsHistory(const RowSampling& sampling) {
  return HasPenalties(sampling) || sampling.has_constraint() ||
         std::any_of(sampling.bad_words().begin(),
                     sampling.bad_words().end(),
                     [](const auto& word) { return word.token_ids_size() > 1; });
}

template <typename T>
absl::Status SamplingInputs::List<T>::Reserve(kernels::Backend& backend,
                                              size_t count,
                                              int num_sets) {
  if (count <= capacity_) return absl::OkStatus();
  // What steps in flight read and copy from is about to be freed.
  PAGODA_RETURN_IF_ERROR(backend.Synchronize());
  const size_t capacity = std::max(count, 2 * capacity_);
  PAGODA_ASSIGN_OR_RETURN(device_, backend.Allocate(capacity * sizeof(T), "sampling inputs"));
  staging_.clear();
  for (int i = 0; i < num_sets; ++i) {
    PAGODA_ASSIGN_OR_RETURN(
        kernels::Buffer staging,
        backend.AllocateHost(capacity * sizeof(T), "staging of sampling inputs"));
    staging_.push_back(std::move(staging));
  }
  capacity_ = capacity;
  return absl::OkStatus();
}

template <typename T>
absl::Status SamplingInputs::List<T>::Copy(kernels::Backend& backend, int set_idx) {
  if (values_.empty()) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(Reserve(backend, values_.size(), static_cast<int>(staging_.size())));
  const size_t size_bytes = values_.size() * sizeof(T);
  void* const staged = staging_[static_cast<size_t>(set_idx)].data();
  std::memcpy(staged, values_.data(), size_bytes);
  return backend.CopyToDevice(device_.data(), staged, size_bytes);
}

absl::StatusOr<SamplingInputs> SamplingInputs::Allocate(kernels::Backend& backend,
                                                        const StepLimits& limits,
                                                        int32_t max_logit_rows,
                                                        int num_sets) {
  // Lists of ids start small: most requests have none.
  constexpr size_t kFirstListCapacity = 1024;
  SamplingInputs inputs;
  inputs.num_sets_ = num_sets;
  inputs.counts_.resize(static_cast<size_t>(limits.num_slots));
  const size_t rows = static_cast<size_t>(max_logit_rows);
  PAGODA_RETURN_IF_ERROR(inputs.batch_rows_.Reserve(backend, rows, num_sets));
  PAGODA_RETURN_IF_ERROR(inputs.sample_rows_.Reserve(backend, rows, num_sets));
  PAGODA_RETURN_IF_ERROR(inputs.allowed_.Reserve(backend, kFirstListCapacity, num_sets));
  PAGODA_RETURN_IF_ERROR(inputs.masked_.Reserve(backend, kFirstListCapacity, num_sets));
  PAGODA_RETURN_IF_ERROR(inputs.bias_ids_.Reserve(backend, kFirstListCapacity, num_sets));
  PAGODA_RETURN_IF_ERROR(inputs.bias_values_.Reserve(backend, kFirstListCapacity, num_sets));
  PAGODA_RETURN_IF_ERROR(inputs.penalties_.Reserve(backend, kFirstListCapacity, num_sets));
  return inputs;
}

void SamplingInputs::AddMasked(const LogitRow& row, const SlotState& slot) {
  std::vector<int32_t>& masked = masked_.values();
  for (const internal::v1::TokenSequence& word : slot.sampling.bad_words()) {
    if (IsOneTokenShort(word, row, slot)) {
      masked.push_back(static_cast<int32_t>(word.token_ids(word.token_ids_size() - 1)));
    }
  }
  if (row.is_prompt) return;
  const uint32_t num_output = static_cast<uint32_t>(row.position - slot.num_prompt_tokens);
  if (num_output < slot.sampling.min_tokens()) {
    const auto& ids = slot.sampling.min_tokens_masked_ids();
    masked.insert(masked.end(), ids.begin(), ids.end());
  }
}

void SamplingInputs::AddRow(const LogitRow& row,
                            const SlotState& slot,
                            OutputConstraints* constraints) {
  const auto size = [](const auto& list) { return static_cast<int32_t>(list.size()); };
  kernels::SampleRow& sample = sample_rows_.values().emplace_back();
  sample.position = row.position;
  sample.num_logprobs = row.num_logprobs;
  sample.allowed_begin = sample.allowed_end = size(allowed_.values());
  sample.masked_begin = sample.masked_end = size(masked_.values());
  sample.bias_begin = sample.bias_end = size(bias_ids_.values());
  sample.penalty_begin = sample.penalty_end = size(penalties_.values());
  if (row.is_prompt) sample.target_token = slot.tokens[static_cast<size_t>(row.position)];
  // After a draft the host knows every token.
  if (!row.is_prompt && !row.is_drafted) sample.slot = row.slot;
  if (!row.is_prompt || slot.sampling.processed_logprobs())
    AddProcessing(row, slot, constraints, &sample);
}

void SamplingInputs::AddProcessing(const LogitRow& row,
                                   const SlotState& slot,
                                   OutputConstraints* constraints,
                                   kernels::SampleRow* sample) {
  const RowSampling& sampling = slot.sampling;
  sample->temperature = sampling.temperature();
  sample->top_p = sampling.top_p();
  sample->min_p = sampling.min_p();
  sample->typical_p = sampling.typical_p();
  sample->repetition_penalty = sampling.repetition_penalty();
  sample->frequency_penalty = sampling.frequency_penalty();
  sample->presence_penalty = sampling.presence_penalty();
  sample->top_k =
      static_cast<int32_t>(std::min<uint32_t>(sampling.top_k(), static_cast<uint32_t>(INT32_MAX)));
  sample->seed = sampling.seed();
  sample->processed_logprobs = sampling.processed_logprobs() ? 1 : 0;
  // The positions of a prompt follow one another and have the same lists.
  const bool continues_prompt = row.is_prompt && prompt_tokens_.slot == row.slot;
  if (continues_prompt) {
    const kernels::SampleRow& last = sample[-1];
    sample->allowed_begin = last.allowed_begin;
    sample->allowed_end = last.allowed_end;
    sample->bias_begin = last.bias_begin;
    sample->bias_end = last.bias_end;
  } else {
    AddIds(row, slot, constraints, sample);
  }
  AddMasked(row, slot);
  sample->masked_end = static_cast<int32_t>(masked_.values().size());
  ForceToken(row, slot, constraints, sample);
  AddPenalties(row, slot, sample);
}

void SamplingInputs::AddIds(const LogitRow& row,
                            const SlotState& slot,
                            OutputConstraints* constraints,
                            kernels::SampleRow* sample) {
  const RowSampling& sampling = slot.sampling;
  const auto& allowed = sampling.allowed_token_ids();
  // A prompt owes nothing to a constraint of what follows it.
  if (row.is_prompt || !sampling.has_constraint()) {
    allowed_.values().insert(allowed_.values().end(), allowed.begin(), allowed.end());
  } else if (!constraints->Mask(row.slot, slot, &allowed_.values(), &masked_.values())) {
    // Nothing may follow: some token keeps the row going, and nobody reads it.
    allowed_.values().push_back(0);
  }
  sample->allowed_end = static_cast<int32_t>(allowed_.values().size());
  const auto& ids = sampling.bias_token_ids();
  const auto& values = sampling.bias_values();
  bias_ids_.values().insert(bias_ids_.values().end(), ids.begin(), ids.end());
  bias_values_.values().insert(bias_values_.values().end(), values.begin(), values.end());
  sample->bias_end = static_cast<int32_t>(bias_ids_.values().size());
}

void SamplingInputs::ForceToken(const LogitRow& row,
                                const SlotState& slot,
                                OutputConstraints* constraints,
                                kernels::SampleRow* sample) {
  if (row.is_prompt) return;
  const auto token = constraints->ForcedToken(row.slot, slot, row.position);
  if (!token.has_value()) return;
  // Nothing else that was listed for the row may rule it out.
  sample->allowed_begin = static_cast<int32_t>(allowed_.values().size());
  allowed_.values().push_back(*token);
  sample->allowed_end = sample->allowed_begin + 1;
  sample->masked_end = sample->masked_begin;
}

void SamplingInputs::AddPenalties(const LogitRow& row,
                                  const SlotState& slot,
                                  kernels::SampleRow* sample) {
  std::vector<kernels::PenaltyEntry>& penalties = penalties_.values();
  if (row.is_prompt) {
    if (prompt_tokens_.slot != row.slot) {
      prompt_tokens_ = {.slot = row.slot, .begin = static_cast<int32_t>(penalties.size())};
    }
    if (!HasPenalties(slot.sampling)) return;
    AddPromptTokens(row, slot);
    sample->penalty_begin = prompt_tokens_.begin;
  } else if (HasPenalties(slot.sampling)) {
    AddOutputCounts(row, slot);
  }
  sample->penalty_end = static_cast<int32_t>(penalties.size());
}

void SamplingInputs::AddOutputCounts(const LogitRow& row, const SlotState& slot) {
  std::vector<kernels::PenaltyEntry>& penalties = penalties_.values();
  TokenCounts& counts = counts_[static_cast<size_t>(row.slot)];
  counts.Update(slot);
  const auto begin = static_cast<std::ptrdiff_t>(penalties.size());
  penalties.insert(penalties.end(), counts.entries().begin(), counts.entries().end());
  for (size_t i = 0; i < static_cast<size_t>(row.num_drafts_before); ++i) {
    const TokenId token = slot.draft[i];
    const auto entry = std::find_if(penalties.begin() + begin, penalties.end(), [&](const auto& e) {
      return e.token == token;
    });
    if (entry != penalties.end()) {
      ++entry->output_count;
    } else {
      penalties.push_back({.token = token, .output_count = 1});
    }
  }
}

void SamplingInputs::AddPromptTokens(const LogitRow& row, const SlotState& slot) {
  for (int32_t& i = prompt_tokens_.num_counted; i < row.position; ++i) {
    const TokenId token = slot.tokens[static_cast<size_t>(i)];
    if (prompt_tokens_.seen.insert(token).second) penalties_.values().push_back({.token = token});
  }
}

absl::Status SamplingInputs::Build(kernels::Backend& backend,
                                   absl::Span<const LogitRow> rows,
                                   const SlotTable& slots,
                                   OutputConstraints* constraints,
                                   int set_idx,
                                   int32_t padded_rows,
                                   kernels::SampleParams* params) {
  batch_rows_.values().clear();
  sample_rows_.values().clear();
  allowed_.values().clear();
  masked_.values().clear();
  bias_ids_.values().clear();
  bias_values_.values().clear();
  penalties_.values().clear();
  prompt_tokens_.slot = -1;
  for (const LogitRow& row : rows) {
    batch_rows_.values().push_back(row.batch_row);
    AddRow(row, slots.slot(row.slot), constraints);
  }
  batch_rows_.values().resize(std::max(rows.size(), static_cast<size_t>(padded_rows)), 0);
  PAGODA_RETURN_IF_ERROR(batch_rows_.Copy(backend, set_idx));
  PAGODA_RETURN_IF_ERROR(sample_rows_.Copy(backend, set_idx));
  PAGODA_RETURN_IF_ERROR(allowed_.Copy(backend, set_idx));
  PAGODA_RETURN_IF_ERROR(masked_.Copy(backend, set_idx));
  PAGODA_RETURN_IF_ERROR(bias_ids_.Copy(backend, set_idx));
  PAGODA_RETURN_IF_ERROR(bias_values_.Copy(backend, set_idx));
  PAGODA_RETURN_IF_ERROR(penalties_.Copy(backend, set_idx));
  params->rows = static_cast<int64_t>(rows.size());
  params->row_params = sample_rows_.device();
  params->host_row_params = sample_rows_.host(set_idx);
  params->allowed_ids = allowed_.device();
  params->masked_ids = masked_.device();
  params->bias_ids = bias_ids_.device();
  params->bias_values = bias_values_.device();
  params->penalties = penalties_.device();
  return absl::OkStatus();
}

}  // namespace pagoda::engine
