#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/base/dtype.h"
#include "kernels/ops/activation_kind.h"

namespace pagoda::kernels {

// y[i, j] = activation(x[i, j]), times x[i, width + j] where gated. SiluMul is the gated kSilu.
struct ActivateParams {
  const void* x = nullptr;  // [rows, width] in dtype; [rows, 2 * width] where gated
  void* y = nullptr;        // [rows, width] in dtype; may be x where not gated
  int64_t rows = 0;
  int64_t width = 0;
  bool gated = false;
  Activation activation = Activation::kSilu;
  DType dtype = DType::kFloat32;
};

absl::Status Validate(const ActivateParams& params);

// y[i] += scale * x[i], rounded once to dtype.
struct AddScaledParams {
  const void* x = nullptr;  // [count] in dtype
  void* y = nullptr;        // [count] in dtype
  int64_t count = 0;
  float scale = 1.0f;
  DType dtype = DType::kFloat32;
};

absl::Status Validate(const AddScaledParams& params);

// logits[i, j] becomes cap(scale * logits[i, j]) with cap(x) = soft_cap * tanh(x / soft_cap), or x where soft_cap is 0.
struct AdjustLogitsParams {
  float* logits = nullptr;  // [rows, width], rows stride apart
  int64_t rows = 0;
  int64_t width = 0;
  int64_t stride = 0;
  float scale = 1.0f;
  float soft_cap = 0.0f;
};

absl::Status Validate(const AdjustLogitsParams& params);

}  // namespace pagoda::kernels
