#include "engine/model/warm_up_plans.h"

#include <algorithm>

namespace pagoda::engine {
namespace {

using internal::v1::NewSequence;
using internal::v1::StepPlan;

// Of a sequence of the largest step, for decode steps after it.
constexpr int32_t kRoomTokens = 4;

// A sequence in `slot` that samples greedily, and its row.
void AddSequence(const StepLimits& limits, int32_t slot, int32_t num_tokens, StepPlan& plan) {
  NewSequence& sequence = *plan.add_new_sequences();
  sequence.set_slot(static_cast<uint32_t>(slot));
  for (int32_t i = 0; i < num_tokens; ++i) sequence.add_token_ids(0);
  sequence.set_num_prompt_tokens(static_cast<uint32_t>(num_tokens));
  const int32_t capacity = std::min(num_tokens + kRoomTokens, limits.max_model_len);
  auto& table = *sequence.add_block_tables();
  for (int32_t first = 0; first < capacity; first += limits.block_size) table.add_block_ids(0);
  sequence.mutable_sampling()->set_top_p(1.0f);
  sequence.mutable_sampling()->set_typical_p(1.0f);
  sequence.mutable_sampling()->set_repetition_penalty(1.0f);
  plan.add_row_slots(static_cast<uint32_t>(slot));
  plan.add_row_num_tokens(static_cast<uint32_t>(num_tokens));
  plan.add_row_samples(1);
}

}  // namespace

StepPlan SmallPromptPlan(const StepLimits& limits) {
  const int32_t room = std::min(limits.block_size, limits.max_model_len);
  StepPlan plan;
  plan.set_step_id(1);
  AddSequence(limits, 0, std::max(1, std::min(room - 1, limits.max_step_tokens)), plan);
  return plan;
}

int32_t LargestNumSequences(const StepLimits& limits) {
  return std::min(limits.num_slots, limits.max_step_tokens);
}

int32_t RoomAfterLargestPrompt(const StepLimits& limits) {
  return std::min(kRoomTokens, limits.max_model_len - 1);
}

int32_t NumLayersOfEveryKind(const ModelConfig& model) {
  for (int32_t layer = 1; layer < model.num_layers; ++layer) {
    if (model.HasExperts(layer) != model.HasExperts(0)) return layer + 1;
  }
  return std::min(model.num_layers, 1);
}

StepPlan LargestPromptPlan(const StepLimits& limits) {
  const int32_t num_sequences = LargestNumSequences(limits);
  const int32_t longest = limits.max_model_len - RoomAfterLargestPrompt(limits);
  StepPlan plan;
  plan.set_step_id(1);
  int32_t left = limits.max_step_tokens;
  for (int32_t slot = 0; slot < num_sequences; ++slot) {
    // The first are the longest; one token is kept for each that follows.
    const int32_t num_tokens = std::min(longest, left - (num_sequences - 1 - slot));
    AddSequence(limits, slot, num_tokens, plan);
    left -= num_tokens;
  }
  return plan;
}

StepPlan DecodePlan(uint64_t step_id, int32_t num_sequences) {
  StepPlan plan;
  plan.set_step_id(step_id);
  for (int32_t slot = 0; slot < num_sequences; ++slot) {
    plan.add_row_slots(static_cast<uint32_t>(slot));
    plan.add_row_num_tokens(1);
    plan.add_row_samples(1);
  }
  return plan;
}

}  // namespace pagoda::engine
