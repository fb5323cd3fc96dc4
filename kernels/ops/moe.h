#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/base/dtype.h"
#include "kernels/ops/linear.h"

namespace pagoda::kernels {

// Which rows each expert works on. An entry is one (row, choice); entries are sorted by expert,
// those of one expert by row. There are rows * top_k of them, whatever was chosen, so shapes do not
// depend on data.
struct ExpertRouting {
  int32_t* group_offsets = nullptr;  // [num_experts + 1]; expert e has entries [e], up to [e + 1]
  int32_t* entry_rows = nullptr;     // [rows * top_k], row of each entry
  int32_t* row_experts = nullptr;    // [rows, top_k], the chosen experts, best first
  int32_t* row_entries = nullptr;    // [rows, top_k], entry of each choice
  float* row_weights = nullptr;      // [rows, top_k]
};

// Chooses the top_k experts of each row by its softmax over all experts, the lower id on ties. A
// choice's weight is its probability, divided by the sum of the row's choices where `normalise`.
struct RouteExpertsParams {
  const float* logits = nullptr;  // [rows, num_experts]
  int64_t rows = 0;
  int32_t num_experts = 0;
  int32_t top_k = 0;
  bool normalise = true;
  ExpertRouting routing;
};

absl::Status Validate(const RouteExpertsParams& params);

// y[i, :] = weight of entry i's group * x[entry_rows[i], :]: rows are gathered by index, so nothing
// is copied or padded for an expert. An element's sum over k has one order, as in Linear.
struct GroupedLinearParams {
  const void* x = nullptr;                 // [*, k] in dtype, rows x_stride apart
  const int32_t* entry_rows = nullptr;     // [num_entries], or null: entry i reads row i
  const int32_t* group_offsets = nullptr;  // [num_groups + 1], as in ExpertRouting
  LinearWeight weight;                     // [num_groups * n, k], group after group
  int32_t num_groups = 0;
  void* y = nullptr;  // [num_entries, n] in dtype
  int64_t num_entries = 0;
  int64_t x_stride = 0;
  DType dtype = DType::kFloat32;

  int64_t n() const { return weight.n / num_groups; }
};

absl::Status Validate(const GroupedLinearParams& params);

// y[i, :] (+)= sum over j of row_weights[i, j] * x[row_entries[i, j], :], in the order of j.
struct CombineExpertsParams {
  const void* x = nullptr;               // [rows * top_k, width] in dtype, by entry
  const int32_t* row_entries = nullptr;  // [rows, top_k]
  const float* row_weights = nullptr;    // [rows, top_k]
  void* y = nullptr;                     // [rows, width] in dtype
  int64_t rows = 0;
  int64_t width = 0;
  int32_t top_k = 0;
  DType dtype = DType::kFloat32;
  bool adds = true;  // to what is in y
};

absl::Status Validate(const CombineExpertsParams& params);

}  // namespace pagoda::kernels
