#pragma once

#include <nccl.h>

#include "absl/status/statusor.h"

namespace pagoda::kernels::cuda {

// The functions of libnccl.so.2 that groups call. It is opened when the first group is made, so
// that a machine with one GPU needs none.
struct NcclLibrary {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommFinalize) comm_finalize = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;

  // Of this process, opened once; FAILED_PRECONDITION saying why it cannot be. NVLink multicast is
  // switched off for good: NCCL_NVLS_ENABLE=0 in the environment.
  static absl::StatusOr<const NcclLibrary*> Get();
};

}  // namespace pagoda::kernels::cuda
