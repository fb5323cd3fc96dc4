#include "kernels/ops/moe.h"

#include "kernels/base/status_macros.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels {
namespace {

// Entries are 32-bit numbers.
constexpr int64_t kMaxEntries = INT32_MAX;

}  // namespace

absl::Status Validate(const RouteExpertsParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("RouteExperts.rows", params.rows, 0));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("RouteExperts.num_experts", params.num_experts, 1));
  PAGODA_RETURN_IF_ERROR(RequireBetween("RouteExperts.top_k", params.top_k, 1, params.num_experts));
  PAGODA_RETURN_IF_ERROR(
      RequireBetween("RouteExperts.rows * top_k", params.rows * params.top_k, 0, kMaxEntries));
  PAGODA_RETURN_IF_ERROR(
      RequirePointer("RouteExperts.routing.group_offsets", params.routing.group_offsets));
  if (params.rows == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequirePointer("RouteExperts.logits", params.logits));
  PAGODA_RETURN_IF_ERROR(
      RequirePointer("RouteExperts.routing.entry_rows", params.routing.entry_rows));
  PAGODA_RETURN_IF_ERROR(
      RequirePointer("RouteExperts.routing.row_experts", params.routing.row_experts));
  PAGODA_RETURN_IF_ERROR(
      RequirePointer("RouteExperts.routing.row_entries", params.routing.row_entries));
  return RequirePointer("RouteExperts.routing.row_weights", params.routing.row_weights);
}

absl::Status Validate(const GroupedLinearParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("GroupedLinear.num_groups", params.num_groups, 1));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("GroupedLinear.weight.n", params.weight.n, 1));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("GroupedLinear.weight.k", params.weight.k, 1));
  PAGODA_RETURN_IF_ERROR(
      RequireMultiple("GroupedLinear.weight.n", params.weight.n, params.num_groups));
  PAGODA_RETURN_IF_ERROR(RequireActivation("GroupedLinear.weight.dtype", params.weight.dtype));
  PAGODA_RETURN_IF_ERROR(RequireActivation("GroupedLinear.dtype", params.dtype));
  PAGODA_RETURN_IF_ERROR(
      RequireBetween("GroupedLinear.num_entries", params.num_entries, 0, kMaxEntries));
  if (params.num_entries == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(
      RequireAtLeast("GroupedLinear.x_stride", params.x_stride, params.weight.k));
  PAGODA_RETURN_IF_ERROR(RequirePointer("GroupedLinear.x", params.x));
  PAGODA_RETURN_IF_ERROR(RequirePointer("GroupedLinear.group_offsets", params.group_offsets));
  PAGODA_RETURN_IF_ERROR(RequirePointer("GroupedLinear.weight.data", params.weight.data));
  return RequirePointer("GroupedLinear.y", params.y);
}

absl::Status Validate(const CombineExpertsParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("CombineExperts.rows", params.rows, 0));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("CombineExperts.width", params.width, 1));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("CombineExperts.top_k", params.top_k, 1));
  PAGODA_RETURN_IF_ERROR(RequireActivation("CombineExperts.dtype", params.dtype));
  if (params.rows == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequirePointer("CombineExperts.x", params.x));
  PAGODA_RETURN_IF_ERROR(RequirePointer("CombineExperts.row_entries", params.row_entries));
  PAGODA_RETURN_IF_ERROR(RequirePointer("CombineExperts.row_weights", params.row_weights));
  return RequirePointer("CombineExperts.y", params.y);
}

}  // namespace pagoda::kernels
