#pragma once

#include <cstdint>

#include "kernels/ops/philox.h"
#include "kernels/ops/sample.h"

namespace pagoda::kernels::cuda {

// What a row that is drawn in one pass leaves between its blocks. Zeros between launches.
struct SampleRowState {
  unsigned long long best;  // SortKey of the best token so far
  uint32_t num_done;        // blocks that have added theirs
  uint32_t reserved;
};

// Where clusters take rows from. Zeros between launches.
struct SelectQueue {
  uint32_t next_row;
  uint32_t num_done;  // clusters that found it empty
};

// Below this a logit over the temperature may overflow; such rows take the path that subtracts the
// maximum first.
inline constexpr float kMinStreamTemperature = 1e-20f;

// Whether the row needs no more than the argmax of its logits, with or without noise: one pass over
// memory, no filter, nothing added, no log-probability. The other rows go through SelectKernel.
PAGODA_HOST_DEVICE inline bool IsStreamRow(const SampleRow& row) {
  const bool untouched = row.allowed_begin == row.allowed_end &&
                         row.masked_begin == row.masked_end && row.bias_begin == row.bias_end &&
                         (row.penalty_begin == row.penalty_end ||
                          (row.repetition_penalty == 1.0f && row.frequency_penalty == 0.0f &&
                           row.presence_penalty == 0.0f));
  const bool unfiltered = row.temperature == 0.0f ||
                          (row.top_k == 0 && row.top_p >= 1.0f && row.min_p <= 0.0f &&
                           row.typical_p >= 1.0f && row.temperature >= kMinStreamTemperature);
  return untouched && unfiltered && row.num_logprobs < 0 && row.target_token < 0;
}

}  // namespace pagoda::kernels::cuda
