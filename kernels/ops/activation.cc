#include "kernels/ops/activation.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels {

absl::Status Validate(const ActivateParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("Activate.rows", params.rows, 0));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("Activate.width", params.width, 1));
  PAGODA_RETURN_IF_ERROR(RequireBetween("Activate.activation",
                                        static_cast<int64_t>(params.activation),
                                        0,
                                        static_cast<int64_t>(Activation::kGeluTanh)));
  PAGODA_RETURN_IF_ERROR(RequireActivation("Activate.dtype", params.dtype));
  if (params.rows == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequirePointer("Activate.x", params.x));
  return RequirePointer("Activate.y", params.y);
}

absl::Status Validate(const AddScaledParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("AddScaled.count", params.count, 0));
  PAGODA_RETURN_IF_ERROR(RequireFinite("AddScaled.scale", params.scale));
  PAGODA_RETURN_IF_ERROR(RequireActivation("AddScaled.dtype", params.dtype));
  if (params.count == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequirePointer("AddScaled.x", params.x));
  return RequirePointer("AddScaled.y", params.y);
}

absl::Status Validate(const AdjustLogitsParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("AdjustLogits.rows", params.rows, 0));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("AdjustLogits.width", params.width, 1));
  PAGODA_RETURN_IF_ERROR(RequireFinite("AdjustLogits.scale", params.scale));
  PAGODA_RETURN_IF_ERROR(RequireFinite("AdjustLogits.soft_cap", params.soft_cap));
  if (params.soft_cap < 0.0f) {
    return absl::InvalidArgumentError(
        absl::StrCat("AdjustLogits.soft_cap is ", params.soft_cap, "; expected 0 (off) or more"));
  }
  if (params.rows == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("AdjustLogits.stride", params.stride, params.width));
  return RequirePointer("AdjustLogits.logits", params.logits);
}

}  // namespace pagoda::kernels
