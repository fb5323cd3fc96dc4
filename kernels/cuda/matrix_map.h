#pragma once

#include <cstdint>
#include <cuda.h>

#include "absl/status/statusor.h"
#include "kernels/base/dtype.h"

namespace pagoda::kernels::cuda {

// Rows of 16-bit elements, `row_stride` elements apart.
struct MatrixView {
  const void* data = nullptr;  // 16-byte aligned
  DType dtype = DType::kBFloat16;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_stride = 0;  // a multiple of 8
};

// What the tensor copy engine reads the matrix by, in boxes of `box_rows` (at most 256) rows and 64
// columns, swizzled by 128 bytes; what lies outside the matrix is read as zeros.
absl::StatusOr<CUtensorMap> MakeMatrixMap(const MatrixView& matrix, int32_t box_rows);

}  // namespace pagoda::kernels::cuda
