#pragma once

#include "absl/status/status.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/linear.h"

namespace pagoda::kernels {

// What RmsNorm would do to a product's input, rounding to x_dtype included.
struct InputNorm {
  const float* weight = nullptr;  // [k]; null: x is taken as it is
  float epsilon = 1e-5f;
  float weight_offset = 0.0f;
};

// A product and the ops around it in one: p = linear(norm(x)), rounded to y_dtype, then one of
//   y = p;
//   y[i, j] = silu(p[i, j]) * p[i, n / 2 + j], as SiluMul: y has n / 2 columns;
//   p through RopeKvWrite: q, rotated, goes to y, k and v to the cache alone.
struct FusedLinearParams {
  LinearParams linear;
  InputNorm norm;
  bool silu_mul = false;
  const RopeKvWriteParams* rope = nullptr;  // its qkv is linear.y
};

absl::Status Validate(const FusedLinearParams& params);

}  // namespace pagoda::kernels
