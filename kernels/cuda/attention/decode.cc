#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/check.h"
#include "kernels/cuda/attention/instances.h"
#include "kernels/cuda/dispatch.h"

namespace pagoda::kernels::cuda {

absl::StatusOr<AttentionPlanShape> MakeAttentionPlanShape(const AttentionGeometry& geometry) {
  if (geometry.num_kv_heads <= 0 || geometry.num_q_heads <= 0 ||
      geometry.num_q_heads % geometry.num_kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: ",
                     geometry.num_q_heads,
                     " query heads and ",
                     geometry.num_kv_heads,
                     " KV heads; the first must be a multiple of the second"));
  }
  if (geometry.num_multiprocessors <= 0) {
    return absl::InvalidArgumentError("attention: num_multiprocessors must be positive");
  }
  PAGODA_RETURN_IF_ERROR(DispatchAttention(
      geometry.dtype, geometry.head_dim, "attention", []<typename T, int kHeadDim>() {
        return absl::OkStatus();
      }));
  const int32_t group_size = geometry.num_q_heads / geometry.num_kv_heads;
  if (group_size > kPrefillRowsPerTile) {
    return absl::UnimplementedError(
        absl::StrCat("attention: ",
                     group_size,
                     " query heads a KV head are not supported; at most ",
                     kPrefillRowsPerTile));
  }
  return AttentionPlanShape{
      .max_seqs = geometry.max_seqs,
      .max_rows = geometry.max_rows,
      .num_kv_heads = geometry.num_kv_heads,
      .group_size = group_size,
      .decode_grid = geometry.num_multiprocessors * DecodeCtasPerMultiprocessor(geometry.head_dim),
      .decode_rows_per_tile = DecodeRowsPerTile(geometry.head_dim, group_size),
      .prefill_grid = geometry.num_multiprocessors,
      .prefill_rows_per_tile = kPrefillRowsPerTile,
  };
}

int64_t AttentionWorkspaceBytes(const AttentionPlanShape& shape, int32_t head_dim) {
  const int64_t num_partial_rows = int64_t{2} * shape.decode_grid * shape.decode_rows_per_tile;
  constexpr int64_t kStateBytes = 2 * sizeof(float);
  return num_partial_rows * (head_dim * int64_t{sizeof(float)} + kStateBytes) +
         shape.decode_grid * int64_t{sizeof(int32_t)};
}

absl::Status LaunchPagedAttentionDecode(const AttentionLaunch& launch, cudaStream_t stream) {
  PAGODA_RETURN_IF_ERROR(CheckAttentionLaunch(launch, "paged attention decode"));
  if (launch.workspace == nullptr) {
    return absl::InvalidArgumentError("paged attention decode: workspace is null");
  }
  const PagedAttentionParams& params = *launch.params;
  return DispatchAttention(params.dtype,
                           params.cache.head_dim,
                           "paged attention decode",
                           [&]<typename T, int kHeadDim>() {
                             return LaunchDecodeInstance<T, kHeadDim>(launch, stream);
                           });
}

}  // namespace pagoda::kernels::cuda
