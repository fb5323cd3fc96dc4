#include "engine/model/step_results.h"

#include <algorithm>

namespace pagoda::engine {
namespace {

using internal::v1::StepResult;

void AddTop(const SampledChunk& sampled,
            size_t row,
            int32_t count,
            google::protobuf::RepeatedField<uint32_t>* ids,
            google::protobuf::RepeatedField<float>* logprobs) {
  const size_t begin = row * static_cast<size_t>(sampled.max_top);
  for (size_t i = begin; i < begin + static_cast<size_t>(std::max(count, 0)); ++i) {
    ids->Add(static_cast<uint32_t>(sampled.top_ids[i]));
    logprobs->Add(sampled.top_logprobs[i]);
  }
}

}  // namespace

void AddTokenLogprobs(const SampledChunk& sampled,
                      size_t i,
                      const LogitRow& row,
                      StepResult& result) {
  internal::v1::TokenLogprobs& logprobs = *result.add_logprobs();
  logprobs.set_slot(static_cast<uint32_t>(row.slot));
  logprobs.set_logprob(sampled.logprobs[i]);
  logprobs.set_rank(static_cast<uint32_t>(sampled.ranks[i]));
  AddTop(sampled, i, row.num_logprobs, logprobs.mutable_top_ids(), logprobs.mutable_top_logprobs());
}

// The message of the row before is the one to extend.
void AddPromptLogprobs(const SampledChunk& sampled,
                       size_t i,
                       const LogitRow& row,
                       StepResult& result) {
  auto& messages = *result.mutable_prompt_logprobs();
  if (messages.empty() || messages.rbegin()->slot() != static_cast<uint32_t>(row.slot)) {
    internal::v1::PromptLogprobs& started = *messages.Add();
    started.set_slot(static_cast<uint32_t>(row.slot));
    started.set_first_position(static_cast<uint32_t>(row.position));
    started.set_num_top(static_cast<uint32_t>(std::max(row.num_logprobs, 0)));
  }
  internal::v1::PromptLogprobs& logprobs = *messages.rbegin();
  logprobs.add_logprobs(sampled.logprobs[i]);
  logprobs.add_ranks(static_cast<uint32_t>(sampled.ranks[i]));
  AddTop(sampled, i, row.num_logprobs, logprobs.mutable_top_ids(), logprobs.mutable_top_logprobs());
}

void AddSampledToken(int32_t slot, uint32_t token, StepResult& result) {
  result.add_token_ids(token);
  const int last = result.sampled_slots_size() - 1;
  if (last < 0 || result.sampled_slots(last) != static_cast<uint32_t>(slot)) {
    result.add_sampled_slots(static_cast<uint32_t>(slot));
    // Sizes are left out as long as all are 1.
    if (result.num_tokens_size() > 0) result.add_num_tokens(1);
    return;
  }
  while (result.num_tokens_size() <= last) result.add_num_tokens(1);
  result.set_num_tokens(last, result.num_tokens(last) + 1);
}

void AddFailedSlot(int32_t slot, StepResult& result) {
  const auto& failed = result.failed_slots();
  if (std::find(failed.begin(), failed.end(), static_cast<uint32_t>(slot)) == failed.end()) {
    result.add_failed_slots(static_cast<uint32_t>(slot));
  }
}

int32_t MaxTop(absl::Span<const LogitRow> rows) {
  int32_t max_top = 0;
  for (const LogitRow& row : rows) max_top = std::max(max_top, row.num_logprobs);
  return max_top;
}

}  // namespace pagoda::engine
