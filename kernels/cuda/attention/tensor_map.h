#pragma once

#include <cstdint>
#include <cuda.h>

#include "absl/status/statusor.h"
#include "kernels/ops/attention.h"

namespace pagoda::kernels::cuda {

// Rows of head_dim elements of the pool in boxes of `box_rows` rows and 64 columns, swizzled by 128
// bytes. The pool is described as it is: one map serves K and V of every block and head. REQUIRES:
// strides are multiples of head_dim.
absl::StatusOr<CUtensorMap> MakeKvTensorMap(const KvCacheView& cache, int32_t box_rows);

}  // namespace pagoda::kernels::cuda
