#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/check.h"
#include "kernels/cuda/attention/instances.h"
#include "kernels/cuda/dispatch.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr absl::string_view kOp = "paged attention prefill";

// What the tensor map of the wgmma kernel can describe: rows of head_dim elements, one after
// another.
bool FitsWgmma(const KvCacheView& cache) {
  const bool rows = cache.block_stride % cache.head_dim == 0 &&
                    cache.v_offset % cache.head_dim == 0 && cache.head_stride % cache.head_dim == 0;
  return rows && HasWgmmaPrefill(cache.head_dim);
}

}  // namespace

absl::Status LaunchPagedAttentionPrefill(const AttentionLaunch& launch, cudaStream_t stream) {
  PAGODA_RETURN_IF_ERROR(CheckAttentionLaunch(launch, kOp));
  const PagedAttentionParams& params = *launch.params;
  const bool fits = FitsWgmma(params.cache);
  if (launch.prefill_kernel == PrefillKernel::kWgmma && !fits) {
    return absl::UnimplementedError(
        absl::StrCat(kOp,
                     ": the wgmma kernel does not support head_dim ",
                     params.cache.head_dim,
                     " with strides ",
                     params.cache.block_stride,
                     ", ",
                     params.cache.v_offset,
                     ", ",
                     params.cache.head_stride,
                     "; supported: 64, 128, 256, strides multiples of head_dim"));
  }
  const bool wgmma = launch.prefill_kernel == PrefillKernel::kWgmma ||
                     (launch.prefill_kernel == PrefillKernel::kAuto && fits);
  return DispatchAttention(
      params.dtype, params.cache.head_dim, kOp, [&]<typename T, int kHeadDim>() {
        if constexpr (HasWgmmaPrefill(kHeadDim)) {
          if (wgmma) return LaunchPrefillWgmmaInstance<T, kHeadDim>(launch, stream);
        }
        return LaunchPrefillMmaInstance<T, kHeadDim>(launch, stream);
      });
}

}  // namespace pagoda::kernels::cuda
