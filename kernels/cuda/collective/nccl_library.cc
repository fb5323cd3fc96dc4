#include "kernels/cuda/collective/nccl_library.h"

#include <cstdlib>
#include <dlfcn.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr char kLibraryFile[] = "libnccl.so.2";
// The first whose communicators do not block, with all that is called here.
constexpr int kLeastVersion = NCCL_VERSION(2, 14, 3);

template <typename Fn>
absl::Status LookUp(void* library, const char* symbol, Fn* function) {
  *function = reinterpret_cast<Fn>(dlsym(library, symbol));
  if (*function != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(kLibraryFile, " has no ", symbol, ": it is too old"));
}

absl::StatusOr<NcclLibrary> OpenLibrary() {
  // Read by NCCL when the first communicator is made. A multicast object that is lost can take the
  // GPUs of a host out of service.
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  // Ranks record graphs at different times, and registering their memory would make them meet.
  setenv("NCCL_GRAPH_REGISTER", "0", 1);
  void* const library = dlopen(kLibraryFile, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot load ", kLibraryFile, ", which nccl groups need: ", dlerror()));
  }
  NcclLibrary nccl;
  PAGODA_RETURN_IF_ERROR(LookUp(library, "ncclGetVersion", &nccl.get_version));
  int version = 0;
  if (nccl.get_version(&version) != ncclSuccess || version < kLeastVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        kLibraryFile, " is of version ", version, "; expected at least ", kLeastVersion));
  }
  PAGODA_RETURN_IF_ERROR(LookUp(library, "ncclGetUniqueId", &nccl.get_unique_id));
  PAGODA_RETURN_IF_ERROR(LookUp(library, "ncclCommInitRankConfig", &nccl.comm_init_rank_config));
  PAGODA_RETURN_IF_ERROR(LookUp(library, "ncclCommGetAsyncError", &nccl.comm_get_async_error));
  PAGODA_RETURN_IF_ERROR(LookUp(library, "ncclCommFinalize", &nccl.comm_finalize));
  PAGODA_RETURN_IF_ERROR(LookUp(library, "ncclCommDestroy", &nccl.comm_destroy));
  PAGODA_RETURN_IF_ERROR(LookUp(library, "ncclCommAbort", &nccl.comm_abort));
  PAGODA_RETURN_IF_ERROR(LookUp(library, "ncclAllReduce", &nccl.all_reduce));
  PAGODA_RETURN_IF_ERROR(LookUp(library, "ncclAllGather", &nccl.all_gather));
  PAGODA_RETURN_IF_ERROR(LookUp(library, "ncclBroadcast", &nccl.broadcast));
  PAGODA_RETURN_IF_ERROR(LookUp(library, "ncclGetErrorString", &nccl.get_error_string));
  PAGODA_RETURN_IF_ERROR(LookUp(library, "ncclGetLastError", &nccl.get_last_error));
  return nccl;
}

}  // namespace

absl::StatusOr<const NcclLibrary*> NcclLibrary::Get() {
  // Never closed: NCCL has threads.
  static const absl::StatusOr<NcclLibrary>& library =
      *new absl::StatusOr<NcclLibrary>(OpenLibrary());
  if (!library.ok()) return library.status();
  return &*library;
}

}  // namespace pagoda::kernels::cuda
