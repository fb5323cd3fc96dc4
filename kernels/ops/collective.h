#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/base/dtype.h"

namespace pagoda::kernels {

// Ops of several devices together: every rank of a DeviceGroup calls them with the same sizes.

// y[i] = the sum of every rank's x[i], added in float32 and rounded once.
struct AllReduceParams {
  const void* x = nullptr;  // [count] in dtype
  void* y = nullptr;        // [count] in dtype; may be x
  int64_t count = 0;
  DType dtype = DType::kFloat32;
};

absl::Status Validate(const AllReduceParams& params);

// sum[i, :] = residual[i, :] + the sum of every rank's x[i, :], rounded once;
// y[i, :] = RmsNorm(sum[i, :]).
struct AllReduceNormParams {
  const void* x = nullptr;         // [rows, width] in dtype
  const void* residual = nullptr;  // [rows, width] in dtype, the same on every rank; null: zeros
  void* sum = nullptr;             // [rows, width] in dtype; may be x or residual
  const float* weight = nullptr;   // [width]
  void* y = nullptr;               // [rows, width] in dtype; may be x where sum is not
  int64_t rows = 0;
  int64_t width = 0;
  float epsilon = 1e-5f;
  float weight_offset = 0.0f;  // 1 for models that store weight - 1
  DType dtype = DType::kFloat32;
};

absl::Status Validate(const AllReduceNormParams& params);

// y[i, rank, :] = that rank's x[i, :], as bytes; what would lie beyond y_row_bytes is left out, so
// that the last rank's rows may end in padding.
struct AllGatherParams {
  const void* x = nullptr;  // [rows, row_bytes]
  void* y = nullptr;        // [rows, y_row_bytes], rows y_stride_bytes apart; not x
  int64_t rows = 0;
  int64_t row_bytes = 0;
  int64_t y_row_bytes = 0;  // at most the ranks' row_bytes together
  int64_t y_stride_bytes = 0;
};

absl::Status Validate(const AllGatherParams& params, int num_ranks);

// data becomes root's data.
struct BroadcastParams {
  void* data = nullptr;  // [size_bytes]
  int64_t size_bytes = 0;
  int root = 0;
};

absl::Status Validate(const BroadcastParams& params, int num_ranks);

}  // namespace pagoda::kernels
