#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/base/dtype.h"

namespace pagoda::kernels {

// y[i, :] = (x[i, :] - mean) / sqrt(variance + epsilon) * weight + bias, with mean and variance of the row.
// Accumulates in float32.
struct LayerNormParams {
  const void* x = nullptr;        // [rows, width] in dtype, rows x_stride apart
  const float* weight = nullptr;  // [width]
  const float* bias = nullptr;    // [width], or null
  void* y = nullptr;              // [rows, width] in dtype, rows y_stride apart; may be x
  int64_t rows = 0;
  int64_t width = 0;
  int64_t x_stride = 0;
  int64_t y_stride = 0;
  float epsilon = 1e-5f;
  DType dtype = DType::kFloat32;
};

absl::Status Validate(const LayerNormParams& params);

// The RMS norm of each head of q and k by itself, in place: head / sqrt(mean(head^2) + epsilon) * (weight +
// weight_offset). Values (v heads) stay as they are.
struct HeadNormParams {
  void* qkv = nullptr;              // [rows, qkv_stride] in dtype: q heads, then k heads, then others
  int64_t rows = 0;
  int64_t qkv_stride = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  const float* q_weight = nullptr;  // [head_dim]
  const float* k_weight = nullptr;  // [head_dim]
  float epsilon = 1e-5f;
  float weight_offset = 0.0f;       // 1 for models that store weight - 1
  DType dtype = DType::kFloat32;
};

absl::Status Validate(const HeadNormParams& params);

}  // namespace pagoda::kernels
