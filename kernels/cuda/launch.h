#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace pagoda::kernels::cuda {

// OK, or INTERNAL naming the call that failed, what it was about and the runtime's reason.
inline absl::Status CudaStatus(cudaError_t error,
                               absl::string_view call,
                               absl::string_view detail) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call,
                                          " failed for ",
                                          detail,
                                          ": ",
                                          cudaGetErrorName(error),
                                          " (",
                                          cudaGetErrorString(error),
                                          ")"));
}

struct LaunchConfig {
  absl::string_view kernel;  // for messages
  dim3 grid = dim3(1);
  dim3 block = dim3(1);
  size_t shared_bytes = 0;  // dynamic
  // May begin before the kernel ahead of it in the stream has ended. REQUIRES: the kernel executes
  // griddepcontrol.wait before it reads what that one writes.
  bool programmatic = false;
};

// The only place that launches a kernel: raises the dynamic shared memory limit, launches, checks.
// Does not synchronise. A grid with a zero dimension is nothing to do.
template <typename... Params, typename... Args>
absl::Status Launch(const LaunchConfig& config,
                    cudaStream_t stream,
                    void (*kernel)(Params...),
                    Args&&... args) {
  // Above this a kernel must ask.
  constexpr size_t kDefaultDynamicSharedBytes = 48 * 1024;
  if (config.grid.x == 0 || config.grid.y == 0 || config.grid.z == 0) return absl::OkStatus();
  const auto describe = [&config] {
    return absl::StrCat(config.kernel,
                        " (grid ",
                        config.grid.x,
                        "x",
                        config.grid.y,
                        "x",
                        config.grid.z,
                        ", block ",
                        config.block.x,
                        "x",
                        config.block.y,
                        "x",
                        config.block.z,
                        ", shared memory ",
                        config.shared_bytes,
                        " bytes)");
  };
  if (config.shared_bytes > kDefaultDynamicSharedBytes) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(config.shared_bytes));
    if (error != cudaSuccess) {
      (void)cudaGetLastError();  // leave no stale error for the next check
      return CudaStatus(error, "cudaFuncSetAttribute(MaxDynamicSharedMemorySize)", describe());
    }
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch = {};
  launch.gridDim = config.grid;
  launch.blockDim = config.block;
  launch.dynamicSmemBytes = config.shared_bytes;
  launch.stream = stream;
  launch.attrs = &attribute;
  launch.numAttrs = config.programmatic ? 1 : 0;
  // The array of addresses must point to objects of exactly the kernel's parameter types.
  const auto call = [&](std::decay_t<Params>... converted) {
    void* addresses[] = {const_cast<void*>(static_cast<const void*>(&converted))...};
    return cudaLaunchKernelExC(&launch, reinterpret_cast<const void*>(kernel), addresses);
  };
  const cudaError_t error = call(std::forward<Args>(args)...);
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();
  return CudaStatus(error, "cudaLaunchKernelExC", describe());
}

}  // namespace pagoda::kernels::cuda
