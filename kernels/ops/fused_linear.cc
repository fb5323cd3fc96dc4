#include "kernels/ops/fused_linear.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels {

absl::Status Validate(const FusedLinearParams& params) {
  LinearParams linear = params.linear;
  if (params.silu_mul && params.rope != nullptr) {
    return absl::InvalidArgumentError("FusedLinear has silu_mul and rope; expected one at most");
  }
  if ((params.silu_mul || params.rope != nullptr) && linear.residual != nullptr) {
    return absl::InvalidArgumentError(
        "FusedLinear.linear.residual is set beside silu_mul or rope; expected null");
  }
  if (params.silu_mul) {
    PAGODA_RETURN_IF_ERROR(RequireMultiple("FusedLinear.linear.weight.n", linear.weight.n, 2));
    PAGODA_RETURN_IF_ERROR(
        RequireAtLeast("FusedLinear.linear.y_stride", linear.y_stride, linear.weight.n / 2));
    linear.y_stride = linear.weight.n;  // what Linear expects of it was checked above
  }
  PAGODA_RETURN_IF_ERROR(Validate(linear));
  PAGODA_RETURN_IF_ERROR(RequireFinite("FusedLinear.norm.epsilon", params.norm.epsilon));
  if (params.rope == nullptr) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(Validate(*params.rope));
  const RopeKvWriteParams& rope = *params.rope;
  const int64_t width =
      (int64_t{rope.num_q_heads} + 2 * int64_t{rope.cache.num_kv_heads}) * rope.cache.head_dim;
  PAGODA_RETURN_IF_ERROR(
      RequireBetween("FusedLinear.linear.weight.n", linear.weight.n, width, width));
  PAGODA_RETURN_IF_ERROR(
      RequireBetween("FusedLinear.rope.batch.num_rows", rope.batch->num_rows, linear.m, linear.m));
  if (rope.qkv != linear.y || rope.qkv_stride != linear.y_stride || rope.dtype != linear.y_dtype) {
    return absl::InvalidArgumentError(
        "FusedLinear.rope.qkv, qkv_stride or dtype is not that of linear.y; expected the same");
  }
  return absl::OkStatus();
}

}  // namespace pagoda::kernels
