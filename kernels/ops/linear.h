#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/base/dtype.h"

namespace pagoda::kernels {

// How a weight's elements are stored. Quantised formats join here; sharding and packing are by
// format.
enum class WeightFormat : uint8_t {
  // Row-major [n, k].
  kRowMajor,
  // For SIMD over output features: [ceil(n / 16)][ceil(k / 2)][16][2], zero padded. bfloat16: one
  // 64-byte load gives
  // two k of 16 outputs; float32: the same order, two loads.
  kPanel16,
};

// A matrix that maps k inputs to n outputs. Does not own.
struct LinearWeight {
  WeightFormat format = WeightFormat::kRowMajor;
  DType dtype = DType::kBFloat16;
  const void* data = nullptr;
  // Scales and zero points of quantised formats, one per group of `group_size` inputs; none today.
  const void* scales = nullptr;
  const void* zeros = nullptr;
  int32_t group_size = 0;
  int64_t n = 0;
  int64_t k = 0;
};

// y[i, :] = weight * x[i, :] + bias + residual[i, :]. Each element is accumulated over k in one
// order that depends on neither m nor i.
struct LinearParams {
  const void* x = nullptr;         // [m, k] in x_dtype, rows x_stride elements apart
  LinearWeight weight;             // [n, k]
  const void* bias = nullptr;      // [n] float32, or null
  const void* residual = nullptr;  // [m, n] in y_dtype, rows y_stride apart, or null; may be y
  void* y = nullptr;               // [m, n] in y_dtype, rows y_stride elements apart
  int64_t m = 0;
  int64_t x_stride = 0;
  int64_t y_stride = 0;
  DType x_dtype = DType::kFloat32;
  DType y_dtype = DType::kFloat32;
  // The kernel follows from shapes and the make of the device alone, not from what was measured:
  // the same bits in every process.
  bool is_fixed = false;
};

absl::Status Validate(const LinearParams& params);

// Writes `rows` rows of a row-major matrix, read from a checkpoint on the host, into rows
// [row_offset, row_offset + rows) of `weight`; several tensors make one weight (q, k and v; gate
// and up).
struct PackLinearParams {
  LinearWeight weight;           // data is written in spite of its const
  const void* source = nullptr;  // [rows, k] row-major on the host
  DType source_dtype = DType::kBFloat16;
  int64_t rows = 0;
  int64_t row_offset = 0;
};

absl::Status Validate(const PackLinearParams& params);

// Random weights for benchmarks, `--load-format=dummy`: rows [row_offset, row_offset + rows) of
// `weight`. They may be a part of a larger matrix of which ranks have the same numbers: element (i,
// j) of the rows is number element_offset + i * row_stride + j of the seed's stream.
struct FillNormalParams {
  LinearWeight weight;  // data is written in spite of its const
  float stddev = 0.02f;
  uint64_t seed = 0;
  int64_t element_offset = 0;
  int64_t row_stride = 0;  // 0: weight.k
  int64_t row_offset = 0;
  int64_t rows = 0;  // 0: all that follow
  int64_t num_rows() const { return rows == 0 ? weight.n - row_offset : rows; }
  int64_t stride() const { return row_stride == 0 ? weight.k : row_stride; }
};

absl::Status Validate(const FillNormalParams& params);

}  // namespace pagoda::kernels
