#include "kernels/cuda/matrix_map.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/launch.h"

namespace pagoda::kernels::cuda {
namespace {

using EncodeTiled = CUresult(CUtensorMap*,
                             CUtensorMapDataType,
                             cuuint32_t,
                             void*,
                             const cuuint64_t*,
                             const cuuint64_t*,
                             const cuuint32_t*,
                             const cuuint32_t*,
                             CUtensorMapInterleave,
                             CUtensorMapSwizzle,
                             CUtensorMapL2promotion,
                             CUtensorMapFloatOOBfill);

// Through the runtime, so that nothing links the driver.
absl::StatusOr<EncodeTiled*> FindEncodeTiled() {
  constexpr unsigned int kVersionThatHasIt = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &function, kVersionThatHasIt, cudaEnableDefault, &found);
  if (error != cudaSuccess) {
    return CudaStatus(error, "cudaGetDriverEntryPointByVersion", "cuTensorMapEncodeTiled");
  }
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    return absl::UnimplementedError("the driver has no cuTensorMapEncodeTiled; 12.0 or newer has");
  }
  return reinterpret_cast<EncodeTiled*>(function);
}

}  // namespace

absl::StatusOr<CUtensorMap> MakeMatrixMap(const MatrixView& matrix, int32_t box_rows) {
  static const absl::StatusOr<EncodeTiled*> encode = FindEncodeTiled();
  PAGODA_RETURN_IF_ERROR(encode.status());
  constexpr uint64_t kElementBytes = 2;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(matrix.columns),
                              static_cast<cuuint64_t>(matrix.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(matrix.row_stride) * kElementBytes};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  CUtensorMap map;
  const CUresult result =
      (*encode.value())(&map,
                        matrix.dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                         : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                        2,
                        const_cast<void*>(matrix.data),
                        sizes,
                        strides,
                        box,
                        steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE,
                        CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return absl::InternalError(absl::StrCat("cuTensorMapEncodeTiled failed with ",
                                            static_cast<int>(result),
                                            " for ",
                                            matrix.rows,
                                            " rows of ",
                                            matrix.columns,
                                            " elements, ",
                                            matrix.row_stride,
                                            " apart, in boxes of ",
                                            box_rows,
                                            " rows"));
  }
  return map;
}

}  // namespace pagoda::kernels::cuda
