#include "kernels/ops/linear.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels {
namespace {

absl::Status ValidateWeight(absl::string_view op, const LinearWeight& weight) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast(absl::StrCat(op, ".weight.n"), weight.n, 1));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast(absl::StrCat(op, ".weight.k"), weight.k, 1));
  PAGODA_RETURN_IF_ERROR(RequireActivation(absl::StrCat(op, ".weight.dtype"), weight.dtype));
  PAGODA_RETURN_IF_ERROR(
      RequireBetween(absl::StrCat(op, ".weight.group_size"), weight.group_size, 0, 0));
  return RequirePointer(absl::StrCat(op, ".weight.data"), weight.data);
}

}  // namespace

absl::Status Validate(const LinearParams& params) {
  PAGODA_RETURN_IF_ERROR(ValidateWeight("Linear", params.weight));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("Linear.m", params.m, 0));
  PAGODA_RETURN_IF_ERROR(RequireActivation("Linear.x_dtype", params.x_dtype));
  PAGODA_RETURN_IF_ERROR(RequireActivation("Linear.y_dtype", params.y_dtype));
  if (params.m == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("Linear.x_stride", params.x_stride, params.weight.k));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("Linear.y_stride", params.y_stride, params.weight.n));
  PAGODA_RETURN_IF_ERROR(RequirePointer("Linear.x", params.x));
  return RequirePointer("Linear.y", params.y);
}

absl::Status Validate(const PackLinearParams& params) {
  PAGODA_RETURN_IF_ERROR(ValidateWeight("PackLinear", params.weight));
  PAGODA_RETURN_IF_ERROR(RequireActivation("PackLinear.source_dtype", params.source_dtype));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("PackLinear.rows", params.rows, 0));
  PAGODA_RETURN_IF_ERROR(
      RequireBetween("PackLinear.row_offset", params.row_offset, 0, params.weight.n));
  PAGODA_RETURN_IF_ERROR(RequireBetween(
      "PackLinear.row_offset + rows", params.row_offset + params.rows, 0, params.weight.n));
  if (params.rows == 0) return absl::OkStatus();
  return RequirePointer("PackLinear.source", params.source);
}

absl::Status Validate(const FillNormalParams& params) {
  PAGODA_RETURN_IF_ERROR(ValidateWeight("FillNormal", params.weight));
  PAGODA_RETURN_IF_ERROR(RequireFinite("FillNormal.stddev", params.stddev));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("FillNormal.element_offset", params.element_offset, 0));
  PAGODA_RETURN_IF_ERROR(
      RequireBetween("FillNormal.row_offset", params.row_offset, 0, params.weight.n));
  PAGODA_RETURN_IF_ERROR(RequireBetween(
      "FillNormal.row_offset + rows", params.row_offset + params.rows, 0, params.weight.n));
  return RequireAtLeast("FillNormal.row_stride", params.stride(), params.weight.k);
}

}  // namespace pagoda::kernels
