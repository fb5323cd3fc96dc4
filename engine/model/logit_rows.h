#pragma once

#include <vector>

#include "absl/types/span.h"
#include "engine/model/batch_inputs.h"
#include "engine/model/sampling_inputs.h"
#include "engine/model/slot_table.h"

namespace pagoda::engine {

// Prompt positions to score and tokens to sample of a step that `inputs` was built for, prompts
// first, so that sampled tokens end up in the last chunk of logits. Pure.
std::vector<LogitRow> LogitRows(absl::Span<const StepRow> rows,
                                const SlotTable& slots,
                                const BatchInputs& inputs);

}  // namespace pagoda::engine
