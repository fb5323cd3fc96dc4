#pragma once

#include <cstdint>
#include <limits>

// What the sampler's passes over one row work on. A row is an array of pointers to blocks of 64
// logits, so that a row with masks, bias or penalties copies only the blocks that these touch.

namespace pagoda::kernels::cpu {

inline constexpr int64_t kRowBlock = 64;

struct RowView {
  const float* const* blocks =
      nullptr;  // [num_blocks] of [kRowBlock]; ids beyond the vocabulary hold -inf
  const float* block_max = nullptr;  // [num_blocks]
  int64_t num_blocks = 0;
};

// A token, and a place in the order (logit descending, id ascending): what is before it or is it,
// is in play.
struct RowToken {
  float z = 0.0f;
  int32_t id = 0;
};
using RowCut = RowToken;
inline constexpr RowCut kNoCut = {-std::numeric_limits<float>::infinity(),
                                  std::numeric_limits<int32_t>::max()};

// s = (z - max) * inverse_temperature, so that the best token has s = 0.
struct RowScale {
  float max = 0.0f;
  float inverse_temperature = 1.0f;
};

struct RowScan {
  float max = 0.0f;
  bool has_nan = false;
};

// Sums over what is in play, of e^s and e^s * s.
struct RowMass {
  double sum = 0;
  double weighted = 0;
};

// Bins of |s - center|; the last one takes all the rest.
inline constexpr int32_t kNumBins = 2048;
inline constexpr float kBinsPerUnit = 64.0f;

struct RowFilter {
  float least = -std::numeric_limits<float>::infinity();  // of z
  int32_t bin = -1;                                       // of |s - center|; -1: any
  float center = 0.0f;
};

struct SampleKernels {
  // Maximum of each block and of all.
  RowScan (*scan)(const float* const* blocks, int64_t num_blocks, float* block_max) = nullptr;
  RowMass (*sum_exp)(const RowView& row, const RowCut& end, const RowScale& scale) = nullptr;
  // Adds e^s of each token in play to the bin of its |s - center|.
  void (*mass_by_bin)(const RowView& row,
                      const RowCut& end,
                      const RowScale& scale,
                      float center,
                      double* mass) = nullptr;
  // Tokens in play that pass the filter and are not -inf, by id; more than capacity where they do
  // not fit.
  int64_t (*collect)(const RowView& row,
                     const RowCut& end,
                     const RowScale& scale,
                     const RowFilter& filter,
                     int64_t capacity,
                     RowToken* out) = nullptr;
  // Tokens before `token` in the order.
  int64_t (*count_before)(const RowView& row, const RowCut& token) = nullptr;
  // Gumbel-max over what is in play; -1 where that is nothing.
  int32_t (*race)(const RowView& row,
                  const RowCut& end,
                  const RowScale& scale,
                  uint64_t seed,
                  int64_t position) = nullptr;
};

}  // namespace pagoda::kernels::cpu
