#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace pagoda::kernels {

// How one row of logits becomes a token. Plain data, copied to the device as it is; neutral values cost nothing.
struct SampleRow {
  float temperature = 1.0f;         // 0: greedy, lowest id on ties
  float top_p = 1.0f;
  float min_p = 0.0f;
  float typical_p = 1.0f;
  float repetition_penalty = 1.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  int32_t top_k = 0;                // 0: off
  uint64_t seed = 0;
  int64_t position = 0;             // index of the token to sample in its sequence: the generator's counter
  int32_t slot = -1;                // last_tokens[slot] gets the token; -1: none
  int32_t target_token = -1;        // >= 0: nothing is sampled, this token is scored (prompt log-probabilities)
  int32_t num_logprobs = -1;        // top entries wanted; -1: no log-probabilities at all
  int32_t processed_logprobs = 0;   // 1: after masks, bias, penalties and temperature; 0: of the raw logits
  // Ranges into the arrays of SampleParams.
  int32_t allowed_begin = 0, allowed_end = 0;    // empty: every id
  int32_t masked_begin = 0, masked_end = 0;      // ids that cannot be sampled (bad words, min_tokens)
  int32_t bias_begin = 0, bias_end = 0;
  int32_t penalty_begin = 0, penalty_end = 0;
};

// A distinct token of a sequence, for penalties.
struct PenaltyEntry {
  int32_t token = 0;
  int32_t output_count = 0;  // occurrences in the output; 0: in the prompt only
};

// Samples each row by the published order: raw logits -> raw log-probabilities -> allowed ids -> masked ids -> bias ->
// repetition, frequency, presence penalties -> greedy, or temperature -> min_p -> top_k -> top_p -> typical_p ->
// Gumbel-max. A pure function of (logits, row): independent of other rows.
//
// One order of tokens, (logit descending, id ascending), settles every tie: top_k keeps exactly its first k; min_p keeps
// those at least min_p times as probable as the first; top_p keeps its shortest prefix whose share of what top_k and
// min_p left reaches top_p; ranks and top entries count in it. typical_p keeps, by |-log p - entropy| ascending and id, the
// shortest prefix whose share of what top_p left reaches typical_p. Each filter keeps at least one token. An
// id outside the vocabulary in one of the lists is passed over; equal ids in a list of biases add up.
//
// Random numbers: Philox-4x32-7 with key = seed and counter = (position, token / 4), word token % 4 (kernels/ops/philox.h),
// so that any backend draws the same noise for the same token.
struct SampleParams {
  const float* logits = nullptr;            // [rows, logits_stride]
  int64_t logits_stride = 0;
  int64_t rows = 0;
  int32_t vocab_size = 0;                   // ids at and above it (padding) never count
  const SampleRow* row_params = nullptr;    // [rows]
  const int32_t* allowed_ids = nullptr;
  const int32_t* masked_ids = nullptr;
  const int32_t* bias_ids = nullptr;
  const float* bias_values = nullptr;
  const PenaltyEntry* penalties = nullptr;
  // Host mirror of row_params: what a backend decides its launches by.
  const SampleRow* host_row_params = nullptr;

  int32_t* last_tokens = nullptr;           // [num_slots]
  int64_t num_slots = 0;
  // [rows]; kNonFinite where a logit is NaN or +inf, or every logit is -inf (after masks too, where they count).
  int32_t* tokens = nullptr;
  float* logprobs = nullptr;                // [rows], of the sampled or target token
  int32_t* ranks = nullptr;                 // [rows], 1 = most probable
  // [rows, max_top], the first num_logprobs (or as many as are not -inf) set, kNoTopEntry and -inf after them.
  int32_t* top_ids = nullptr;
  float* top_logprobs = nullptr;
  int32_t max_top = 0;
};

inline constexpr int32_t kNonFinite = -1;
inline constexpr int32_t kNoTopEntry = -1;

absl::Status Validate(const SampleParams& params);

}  // namespace pagoda::kernels
