#include "kernels/cuda/collective/group_error.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/collective/gather.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels::cuda {

absl::Status AbortedError() { return absl::AbortedError("the group of devices was aborted"); }

absl::Status FaultError(CollectiveFault fault, const FaultFacts& facts) {
  if (fault == CollectiveFault::kAborted) return AbortedError();
  if (fault == CollectiveFault::kTold) {
    return absl::AbortedError(
        absl::StrCat("rank ", facts.peer, " gave up on the group of devices"));
  }
  return absl::UnavailableError(absl::StrCat("rank ",
                                             facts.rank,
                                             " waited ",
                                             facts.timeout_ns / 1000000,
                                             " ms for rank ",
                                             facts.peer,
                                             " after ",
                                             facts.epoch,
                                             " reductions, in vain"));
}

absl::Status SharedDeviceError(int rank, int other, absl::string_view device) {
  return absl::InvalidArgumentError(
      absl::StrCat("a group over nccl has a device for each rank, and ranks ",
                   rank,
                   " and ",
                   other,
                   " are both on ",
                   device,
                   "; expected different devices, or ipc"));
}

absl::Status NoAccessError(int rank, int peer) {
  return absl::FailedPreconditionError(
      absl::StrCat("a group over ipc stores to the memory of all ranks, and the device of rank ",
                   rank,
                   " does not reach that of rank ",
                   peer,
                   "; expected devices with peer access, or nccl"));
}

absl::Status NoReachError(int rank, int64_t index, float value, float expected) {
  return absl::UnavailableError(absl::StrCat("rank ",
                                             rank,
                                             ": the first sum over ranks has ",
                                             value,
                                             " at ",
                                             index,
                                             ", expected ",
                                             expected,
                                             ": the devices do not reach each other's memory"));
}

absl::Status RowTooLongError(int64_t width, DType dtype, int64_t max_bytes) {
  return absl::UnimplementedError(absl::StrCat("AllReduceNorm.width is ",
                                               width,
                                               " of ",
                                               DTypeName(dtype),
                                               "; rows of at most ",
                                               max_bytes,
                                               " bytes are supported"));
}

absl::Status GatherTooLongError(absl::string_view field, int64_t num_bytes) {
  return absl::UnimplementedError(
      absl::StrCat(field, " is ", num_bytes, "; at most ", kMaxGatherBytes, " is supported"));
}

absl::Status CheckGroupOptions(const DeviceGroupOptions& options, int max_ranks) {
  PAGODA_RETURN_IF_ERROR(RequireBetween("DeviceGroup.num_ranks", options.num_ranks, 1, max_ranks));
  PAGODA_RETURN_IF_ERROR(
      RequireBetween("DeviceGroup.rank", options.rank, 0, options.num_ranks - 1));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("DeviceGroup.timeout_ns", options.timeout_ns, 1));
  if (options.exchange) return absl::OkStatus();
  return absl::InvalidArgumentError("DeviceGroup.exchange is empty; expected a function");
}

}  // namespace pagoda::kernels::cuda
