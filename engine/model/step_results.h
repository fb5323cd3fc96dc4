#pragma once

#include "absl/types/span.h"
#include "engine/model/sample_outputs.h"
#include "engine/model/sampling_inputs.h"
#include "pagoda/internal/v1/worker.pb.h"

namespace pagoda::engine {

// ---- From what sampling gave for row `i` of a chunk to the messages of a step's result.

// Log-probabilities of the sampled token.
void AddTokenLogprobs(const SampledChunk& sampled,
                      size_t i,
                      const LogitRow& row,
                      internal::v1::StepResult& result);
// Those of a prompt's token. Rows of one prompt follow one another.
void AddPromptLogprobs(const SampledChunk& sampled,
                       size_t i,
                       const LogitRow& row,
                       internal::v1::StepResult& result);
// One more token of the slot's row; those of a row follow one another.
void AddSampledToken(int32_t slot, uint32_t token, internal::v1::StepResult& result);
// Once, however many of the slot's rows failed.
void AddFailedSlot(int32_t slot, internal::v1::StepResult& result);

// Most top entries that one of the rows wants.
int32_t MaxTop(absl::Span<const LogitRow> rows);

}  // namespace pagoda::engine
