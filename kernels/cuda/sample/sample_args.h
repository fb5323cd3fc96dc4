#pragma once

#include <cstdint>

#include "kernels/ops/philox.h"
#include "kernels/ops/sample.h"

namespace pagoda::kernels::cuda {

// What a row that is drawn in one pass leaves between its warps. Zeros between launches.
struct SampleRowState {
  unsigned long long best;  // SortKey of the best token so far
  uint32_t num_done;        // units whose best is in it
  uint32_t reserved;
};

// Where clusters take rows from. Zeros between launches.
struct SelectQueue {
  uint32_t next_row;
  uint32_t num_done;  // clusters that found it empty
};

// What the one pass over a row works on at a time: a warp's units, of blocks of tokens whose
// largest logits it leaves for rows with top_k.
inline constexpr int kBlockTokens = 128;
inline constexpr int kUnitBlocks = 4;
inline constexpr int kUnitTokens = kUnitBlocks * kBlockTokens;

PAGODA_HOST_DEVICE inline int32_t NumSampleUnits(int32_t vocab_size) {
  return (vocab_size + kUnitTokens - 1) / kUnitTokens;
}

// Limits of SampleRoute::kTop; of rows and vocabularies that one call can have on it.
inline constexpr int32_t kMaxTopK = 256;
inline constexpr int32_t kMaxTopVocab = 262144;
inline constexpr int64_t kMaxTopRows = 1024;

// Below this a logit over the temperature may overflow; such rows take the path that subtracts the
// maximum first.
inline constexpr float kMinStreamTemperature = 1e-20f;

// Which kernels a row needs.
enum class SampleRoute : int32_t {
  kStream,  // no more than the argmax of its logits, with or without noise: one pass
  kTop,     // few tokens can be drawn: the pass finds where they are, TopKernel draws
  kSelect,  // anything else: masks, wide filters, log-probabilities
};

// Without branches: on the device all of the row is on its way at once.
PAGODA_HOST_DEVICE inline SampleRoute RouteOf(const SampleRow& row,
                                              int64_t row_idx,
                                              int32_t vocab_size) {
  const bool no_penalties = (row.penalty_begin == row.penalty_end) |
                            ((row.repetition_penalty == 1.0f) & (row.frequency_penalty == 0.0f) &
                             (row.presence_penalty == 0.0f));
  const bool is_plain = (row.allowed_begin == row.allowed_end) &
                        (row.masked_begin == row.masked_end) & (row.bias_begin == row.bias_end) &
                        (row.num_logprobs < 0) & (row.target_token < 0) & no_penalties;
  const bool is_greedy = row.temperature == 0.0f;
  const bool is_unfiltered = (row.top_k == 0) & (row.top_p >= 1.0f) & (row.min_p <= 0.0f) &
                             (row.typical_p >= 1.0f) & (row.temperature >= kMinStreamTemperature);
  // With so many blocks, hardly more than top_k tokens are at or above the largest of the top_k-th.
  const bool is_few = (row.top_k > 0) & (row.top_k <= kMaxTopK) &
                      (int64_t{row.top_k} * (2 * kBlockTokens) <= vocab_size) &
                      (vocab_size <= kMaxTopVocab) & (row_idx < kMaxTopRows) &
                      (row.typical_p >= 1.0f);
  if (is_plain & (is_greedy | is_unfiltered)) return SampleRoute::kStream;
  return is_plain & is_few ? SampleRoute::kTop : SampleRoute::kSelect;
}

}  // namespace pagoda::kernels::cuda
