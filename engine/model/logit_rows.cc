#include "engine/model/logit_rows.h"

#include <algorithm>

namespace pagoda::engine {

std::vector<LogitRow> LogitRows(absl::Span<const StepRow> rows,
                                const SlotTable& slots,
                                const BatchInputs& inputs) {
  std::vector<LogitRow> logit_rows;
  for (size_t i = 0; i < rows.size(); ++i) {
    const SlotState& slot = slots.slot(rows[i].slot);
    if (!slot.sampling.has_num_prompt_logprobs()) continue;
    // The hidden state at position p says what comes at p + 1.
    const int32_t end = std::min(rows[i].end_position() + 1, slot.num_prompt_tokens);
    for (int32_t position = rows[i].first_position + 1; position < end; ++position) {
      logit_rows.push_back(
          {.slot = rows[i].slot,
           .generation = slot.generation,
           .position = position,
           .batch_row = inputs.first_batch_row(i) + position - 1 - rows[i].first_position,
           .is_prompt = true,
           .num_logprobs = static_cast<int32_t>(slot.sampling.num_prompt_logprobs())});
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].samples) continue;
    const SlotState& slot = slots.slot(rows[i].slot);
    for (int32_t j = 0; j <= rows[i].num_drafts; ++j) {
      const int32_t num_after = rows[i].num_drafts - j;
      logit_rows.push_back(
          {.slot = rows[i].slot,
           .generation = slot.generation,
           .position = rows[i].end_position() - num_after,
           .batch_row = inputs.first_batch_row(i) + rows[i].num_tokens - 1 - num_after,
           .is_drafted = rows[i].num_drafts > 0,
           .num_drafts_before = j,
           .num_logprobs = slot.sampling.has_num_logprobs()
                               ? static_cast<int32_t>(slot.sampling.num_logprobs())
                               : -1});
    }
  }
  return logit_rows;
}

}  // namespace pagoda::engine
