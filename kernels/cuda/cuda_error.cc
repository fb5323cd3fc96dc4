#include "kernels/cuda/cuda_error.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/device_fault.h"

namespace pagoda::kernels::cuda {

absl::Status CublasStatus(cublasStatus_t error, absl::string_view call, absl::string_view detail) {
  if (error == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call,
                                          " failed for ",
                                          detail,
                                          ": ",
                                          cublasLtGetStatusName(error),
                                          " (",
                                          cublasLtGetStatusString(error),
                                          ")"));
}

absl::Status AtPlace(const absl::Status& status, absl::string_view op, absl::string_view device) {
  if (status.ok() || absl::StrContains(status.message(), device)) return status;
  return WithDeviceFault(
      absl::Status(status.code(), absl::StrCat(status.message(), " [op ", op, ", ", device, "]")),
      DeviceFaultOf(status));
}

absl::Status UnsupportedError(absl::string_view op, absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat("cuda ", op, ": ", what));
}

absl::Status NotWhileRecordingError(absl::string_view call) {
  return absl::FailedPreconditionError(
      absl::StrCat(call, " cannot be recorded: it was called between BeginGraph and EndGraph"));
}

}  // namespace pagoda::kernels::cuda
