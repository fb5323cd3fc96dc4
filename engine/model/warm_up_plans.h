#pragma once

#include <cstdint>

#include "engine/model/model_config.h"
#include "engine/model/slot_table.h"
#include "pagoda/internal/v1/worker.pb.h"

namespace pagoda::engine {

// ---- Plans of steps that nobody asked for: they show a device what steps need before it serves.
// Every sequence lies in block 0, whose contents then mean nothing.

// Step 1: a prompt of one block less one token, at most, and its first token sampled.
internal::v1::StepPlan SmallPromptPlan(const StepLimits& limits);
// Step 1: as many tokens, of as many sequences, as any step may have; all of them sample.
internal::v1::StepPlan LargestPromptPlan(const StepLimits& limits);
// Step `step_id`, one token of each of the sequences 0 to num_sequences - 1. REQUIRES: they have
// room for it.
internal::v1::StepPlan DecodePlan(uint64_t step_id, int32_t num_sequences);

// Sequences of LargestPromptPlan. Each has room for kRoomTokens tokens more, unless a context or a
// step has not.
int32_t LargestNumSequences(const StepLimits& limits);
// Tokens that the sequences of LargestPromptPlan can compute after it.
int32_t RoomAfterLargestPrompt(const StepLimits& limits);

// Leading layers that show what any layer of the model takes: up to the first of each kind.
int32_t NumLayersOfEveryKind(const ModelConfig& model);

}  // namespace pagoda::engine
