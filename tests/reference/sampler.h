#pragma once

#include <cstdint>
#include <utility>
#include <vector>

// The sampler's contract (kernels/ops/sample.h), written for clarity: whole-vocabulary passes in
// double precision.

namespace pagoda::reference {

struct SamplerRow {
  double temperature = 1.0;
  double top_p = 1.0;
  double min_p = 0.0;
  double typical_p = 1.0;
  double repetition_penalty = 1.0;
  double frequency_penalty = 0.0;
  double presence_penalty = 0.0;
  int32_t top_k = 0;
  uint64_t seed = 0;
  int64_t position = 0;
  std::vector<int32_t> allowed;  // empty: all
  std::vector<int32_t> masked;
  std::vector<std::pair<int32_t, double>> bias;
  std::vector<std::pair<int32_t, int32_t>> penalties;  // token, occurrences in the output
};

// Ids, most probable first, lowest id on ties.
std::vector<int32_t> Ranking(const std::vector<double>& logits);
std::vector<double> LogSoftmax(const std::vector<double>& logits);

// After allowed ids, masks, bias and penalties; -inf where an id is out.
std::vector<double> ProcessedLogits(const std::vector<double>& logits, const SamplerRow& row);

// The distribution that a token is drawn from; greedy gives all to one id.
std::vector<double> Distribution(const std::vector<double>& logits, const SamplerRow& row);

// What Gumbel-max takes the largest of: filtered logits, scaled by the temperature, plus the noise
// of (seed, position); -inf where an id is out. `seed` and `position` decide the noise alone.
std::vector<double> NoisyLogits(const std::vector<double>& logits, const SamplerRow& row);

}  // namespace pagoda::reference
