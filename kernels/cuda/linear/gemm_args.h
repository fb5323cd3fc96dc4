#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/base/dtype.h"
#include "kernels/ops/fused_linear.h"
#include "kernels/ops/linear.h"

namespace pagoda::kernels::cuda {

// What a linear op does to its input while it brings it into shared memory; what would else be a
// kernel of its own.
enum class InputTransform : int32_t {
  kNone,
  kRmsNorm,  // x / sqrt(mean(x^2) + epsilon) * (weight + offset), rounded to the type of x
  kSiluMul,  // rows of 2k: silu(x[i]) * x[k + i], rounded to the type of x
};

// What becomes of a product p that is computed in pairs of columns, `pair_distance` apart; p is
// rounded to the type of y first.
enum class OutputTransform : int32_t {
  kNone,
  kSiluMul,  // y[i, j] = silu(p[i, j]) * p[i, n / 2 + j]
  kRope,     // RopeKvWrite of p: q to y, k and v to the cache
};

// Where kRope finds angles and the cache; of RopeKvWriteParams.
struct RopeOutput {
  const float* cos_sin = nullptr;  // [max_position + 1, head_dim]
  const int32_t* positions = nullptr;
  const int32_t* kv_slots = nullptr;
  void* cache = nullptr;
  int64_t block_stride = 0;
  int64_t v_offset = 0;
  int64_t head_stride = 0;
  int64_t num_slots = 0;  // of the pool
  int32_t max_position = 0;
  int32_t block_size = 0;
  int32_t head_dim = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  float k_factor = 1.0f;  // 1 / scale: what turns a key into what is stored
  float v_factor = 1.0f;
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
  OutputTransform output = OutputTransform::kNone;
  int32_t pair_distance = 0;  // output other than kNone; n is a multiple of twice this
  RopeOutput rope;            // kRope
};

// Fails on what our kernels and cuBLASLt do not do.
absl::StatusOr<GemmArgs> ToGemmArgs(const LinearParams& params);
// Also UNIMPLEMENTED where the separate ops must be used.
absl::StatusOr<GemmArgs> ToGemmArgs(const FusedLinearParams& params);

// Whether rows of x and of the weight can be read in 16-byte vectors.
inline bool GemmVectorAligned(const GemmArgs& args) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return args.k % 8 == 0 && args.x_stride % 8 == 0 && aligned(args.x) && aligned(args.weight) &&
         (args.transform != InputTransform::kRmsNorm || aligned(args.norm_weight));
}

}  // namespace pagoda::kernels::cuda
