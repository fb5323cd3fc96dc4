#include "kernels/ops/collective.h"

#include "kernels/base/status_macros.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels {

absl::Status Validate(const AllReduceParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("AllReduce.count", params.count, 0));
  PAGODA_RETURN_IF_ERROR(RequireActivation("AllReduce.dtype", params.dtype));
  if (params.count == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequirePointer("AllReduce.x", params.x));
  return RequirePointer("AllReduce.y", params.y);
}

absl::Status Validate(const AllReduceNormParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("AllReduceNorm.rows", params.rows, 0));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("AllReduceNorm.width", params.width, 1));
  PAGODA_RETURN_IF_ERROR(RequireFinite("AllReduceNorm.epsilon", params.epsilon));
  PAGODA_RETURN_IF_ERROR(RequireFinite("AllReduceNorm.weight_offset", params.weight_offset));
  PAGODA_RETURN_IF_ERROR(RequireActivation("AllReduceNorm.dtype", params.dtype));
  if (params.rows == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequirePointer("AllReduceNorm.x", params.x));
  PAGODA_RETURN_IF_ERROR(RequirePointer("AllReduceNorm.sum", params.sum));
  PAGODA_RETURN_IF_ERROR(RequirePointer("AllReduceNorm.weight", params.weight));
  return RequirePointer("AllReduceNorm.y", params.y);
}

absl::Status Validate(const AllGatherParams& params, int num_ranks) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("AllGather.rows", params.rows, 0));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("AllGather.row_bytes", params.row_bytes, 0));
  PAGODA_RETURN_IF_ERROR(
      RequireBetween("AllGather.y_row_bytes", params.y_row_bytes, 0, params.row_bytes * num_ranks));
  PAGODA_RETURN_IF_ERROR(
      RequireAtLeast("AllGather.y_stride_bytes", params.y_stride_bytes, params.y_row_bytes));
  if (params.rows == 0 || params.row_bytes == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequirePointer("AllGather.x", params.x));
  return RequirePointer("AllGather.y", params.y);
}

absl::Status Validate(const BroadcastParams& params, int num_ranks) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("Broadcast.size_bytes", params.size_bytes, 0));
  PAGODA_RETURN_IF_ERROR(RequireBetween("Broadcast.root", params.root, 0, num_ranks - 1));
  if (params.size_bytes == 0) return absl::OkStatus();
  return RequirePointer("Broadcast.data", params.data);
}

}  // namespace pagoda::kernels
