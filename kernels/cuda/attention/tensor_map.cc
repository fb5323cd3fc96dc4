#include "kernels/cuda/attention/tensor_map.h"

#include "kernels/cuda/matrix_map.h"

namespace pagoda::kernels::cuda {

absl::StatusOr<CUtensorMap> MakeKvTensorMap(const KvCacheView& cache, int32_t box_rows) {
  return MakeMatrixMap({.data = cache.data,
                        .dtype = cache.dtype,
                        .rows = cache.num_blocks * cache.block_stride / cache.head_dim,
                        .columns = cache.head_dim,
                        .row_stride = cache.head_dim},
                       box_rows);
}

}  // namespace pagoda::kernels::cuda
