#include "kernels/cuda/attention/check.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr int64_t kVectorBytes = 16;
constexpr int64_t kVectorElements = 8;

absl::Status CheckAligned(const void* pointer, absl::string_view name, absl::string_view op) {
  if (pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % kVectorBytes == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(op,
                                                 ": ",
                                                 name,
                                                 " is at address ",
                                                 reinterpret_cast<uintptr_t>(pointer),
                                                 "; expected a multiple of ",
                                                 kVectorBytes,
                                                 ", not null"));
}

absl::Status CheckStride(int64_t stride, absl::string_view name, absl::string_view op) {
  if (stride > 0 && stride % kVectorElements == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op,
                                                 ": ",
                                                 name,
                                                 " is ",
                                                 stride,
                                                 " elements; expected a positive multiple of ",
                                                 kVectorElements));
}

}  // namespace

absl::Status CheckKvCache(const KvCacheView& cache, DType dtype, absl::string_view op) {
  if (cache.dtype != dtype) {
    return absl::UnimplementedError(
        absl::StrCat(op,
                     ": a cache of ",
                     DTypeName(cache.dtype),
                     " under activations of ",
                     DTypeName(dtype),
                     " is not supported on cuda; supported: equal types"));
  }
  const int32_t size = cache.block_size;
  // A warp's 16 tokens must lie in one block.
  if (size < 16 || (size & (size - 1)) != 0) {
    return absl::UnimplementedError(absl::StrCat(
        op, ": block_size ", size, " is not supported on cuda; supported: 16, 32, 64, 128, ..."));
  }
  if (cache.num_blocks <= 0 || cache.num_blocks > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": num_blocks is ", cache.num_blocks, "; expected 1 to ", INT32_MAX));
  }
  PAGODA_RETURN_IF_ERROR(CheckAligned(cache.data, "cache.data", op));
  PAGODA_RETURN_IF_ERROR(CheckStride(cache.block_stride, "cache.block_stride", op));
  PAGODA_RETURN_IF_ERROR(CheckStride(cache.v_offset, "cache.v_offset", op));
  return CheckStride(cache.head_stride, "cache.head_stride", op);
}

absl::Status CheckAttentionLaunch(const AttentionLaunch& launch, absl::string_view op) {
  if (launch.params == nullptr || launch.params->batch == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(op, ": params or their batch is null"));
  }
  const PagedAttentionParams& params = *launch.params;
  PAGODA_RETURN_IF_ERROR(CheckKvCache(params.cache, params.dtype, op));
  PAGODA_RETURN_IF_ERROR(CheckAligned(params.q, "q", op));
  PAGODA_RETURN_IF_ERROR(CheckAligned(params.out, "out", op));
  PAGODA_RETURN_IF_ERROR(CheckStride(params.q_stride, "q_stride", op));
  PAGODA_RETURN_IF_ERROR(CheckAligned(launch.plan, "plan", op));
  const AttentionPlanShape& shape = launch.shape;
  if (shape.num_kv_heads != params.cache.num_kv_heads ||
      shape.num_kv_heads * shape.group_size != params.num_q_heads) {
    return absl::InvalidArgumentError(absl::StrCat(op,
                                                   ": ",
                                                   params.num_q_heads,
                                                   " query and ",
                                                   params.cache.num_kv_heads,
                                                   " KV heads, but the plan is for ",
                                                   shape.num_kv_heads * shape.group_size,
                                                   " and ",
                                                   shape.num_kv_heads));
  }
  return absl::OkStatus();
}

}  // namespace pagoda::kernels::cuda
