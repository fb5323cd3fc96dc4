#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/base/dtype.h"
#include "kernels/ops/linear.h"

namespace pagoda::kernels {

// Chooses each row's token: from the host where source_slots[i] < 0, else what slot source_slots[i]
// sampled last.
struct ResolveTokensParams {
  const int32_t* host_tokens = nullptr;   // [rows]
  const int32_t* source_slots = nullptr;  // [rows], -1: host_tokens
  const int32_t* last_tokens = nullptr;   // [num_slots], by slot
  int32_t* tokens = nullptr;              // [rows]
  int64_t rows = 0;
  int64_t num_slots = 0;
};

absl::Status Validate(const ResolveTokensParams& params);

// to[pairs[i][0]] = pairs[i][1]. Indices are distinct and below `size` (the cpu refuses others, a
// device passes over them).
struct ScatterParams {
  const int32_t* pairs = nullptr;  // [count, 2]
  int32_t* to = nullptr;           // [size]
  int64_t count = 0;
  int64_t size = 0;
};

absl::Status Validate(const ScatterParams& params);

// y[i, :] = table[tokens[i] - first_id, :] * scale. Ids outside the table are clamped (the host has
// refused them before); outside of a part of a table they give zeros, since another part has them.
struct EmbeddingParams {
  const int32_t* tokens = nullptr;  // [rows]
  LinearWeight table;               // n = vocabulary, k = hidden
  void* y = nullptr;                // [rows, hidden] in y_dtype
  int64_t rows = 0;
  float scale = 1.0f;
  DType y_dtype = DType::kFloat32;
  int32_t first_id = 0;
  bool is_part = false;
};

absl::Status Validate(const EmbeddingParams& params);

// y[i, :] = x[indices[i], :].
struct GatherRowsParams {
  const void* x = nullptr;           // [*, width] in dtype
  const int32_t* indices = nullptr;  // [rows]
  void* y = nullptr;                 // [rows, width] in dtype
  int64_t rows = 0;
  int64_t width = 0;
  DType dtype = DType::kFloat32;
};

absl::Status Validate(const GatherRowsParams& params);

// y[i, :] = x[i, :] / sqrt(mean(x[i, :]^2) + epsilon) * (weight + weight_offset). Accumulates in
// float32.
struct RmsNormParams {
  const void* x = nullptr;        // [rows, width] in dtype, rows x_stride apart
  const float* weight = nullptr;  // [width]
  void* y = nullptr;              // [rows, width] in dtype, rows y_stride apart; may be x
  int64_t rows = 0;
  int64_t width = 0;
  int64_t x_stride = 0;
  int64_t y_stride = 0;
  float epsilon = 1e-5f;
  float weight_offset = 0.0f;  // 1 for models that store weight - 1
  DType dtype = DType::kFloat32;
};

absl::Status Validate(const RmsNormParams& params);

// y[i, j] = silu(gate_up[i, j]) * gate_up[i, width + j].
struct SiluMulParams {
  const void* gate_up = nullptr;  // [rows, 2 * width] in dtype
  void* y = nullptr;              // [rows, width] in dtype
  int64_t rows = 0;
  int64_t width = 0;
  DType dtype = DType::kFloat32;
};

absl::Status Validate(const SiluMulParams& params);

}  // namespace pagoda::kernels
