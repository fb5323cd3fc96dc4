#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"

namespace pagoda::kernels::cuda {

// What a linear op does to its input while it brings it into shared memory; what would else be a
// kernel of its own.
enum class InputTransform : int32_t {
  kNone,
  kRmsNorm,  // x / sqrt(mean(x^2) + epsilon) * (weight + offset), rounded to the type of x
  kSiluMul,  // rows of 2k: silu(x[i]) * x[k + i], rounded to the type of x
};

// y = weight * transform(x) + bias + residual, as our own kernels take it. Plain data, a kernel
// parameter.
struct GemmArgs {
  const void* x = nullptr;         // [m, k or 2k], rows x_stride apart
  const void* weight = nullptr;    // [n, k] row-major, of x's type
  const float* bias = nullptr;     // [n] or null
  const void* residual = nullptr;  // [m, n] in y's type, rows y_stride apart, or null; may be y
  void* y = nullptr;               // [m, n], rows y_stride apart
  int64_t x_stride = 0;
  int64_t y_stride = 0;
  int32_t m = 0;
  int32_t n = 0;
  int32_t k = 0;
  int32_t y_is_float = 0;  // else of x's type
  InputTransform transform = InputTransform::kNone;
  const float* norm_weight = nullptr;  // [k], kRmsNorm
  float norm_epsilon = 0.0f;
  float norm_offset = 0.0f;
};

// Whether rows of x and of the weight can be read in 16-byte vectors.
inline bool GemmVectorAligned(const GemmArgs& args) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return args.k % 8 == 0 && args.x_stride % 8 == 0 && aligned(args.x) && aligned(args.weight) &&
         (args.transform != InputTransform::kRmsNorm || aligned(args.norm_weight));
}

}  // namespace pagoda::kernels::cuda
