#pragma once

#include <utility>

#include "kernels/cuda/device_context.h"

namespace pagoda::kernels::cuda {

// Launch of a kernel whose cluster size is chosen at run time: `cluster` neighbouring blocks of the
// x dimension, at most eight. REQUIRES: as Launch, and grid.x is a multiple of it.
template <typename... Params, typename... Args>
absl::Status LaunchClusters(const DeviceContext& context,
                            const LaunchConfig& config,
                            int cluster,
                            void (*kernel)(Params...),
                            Args&&... args) {
  const auto* const function = reinterpret_cast<const void*>(kernel);
  const cudaError_t raised = cudaFuncSetAttribute(
      function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(config.shared_bytes));
  if (raised != cudaSuccess) {
    (void)cudaGetLastError();
    return CudaStatus(raised, "cudaFuncSetAttribute(MaxDynamicSharedMemorySize)", config.kernel);
  }
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[0].val.clusterDim.y = 1;
  attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch = {};
  launch.gridDim = config.grid;
  launch.blockDim = config.block;
  launch.dynamicSmemBytes = config.shared_bytes;
  launch.stream = context.stream;
  launch.attrs = attributes;
  launch.numAttrs = std::exchange(context.weights_written, false) ? 1 : 2;
  const auto call = [&](std::decay_t<Params>... converted) {
    void* addresses[] = {const_cast<void*>(static_cast<const void*>(&converted))...};
    return cudaLaunchKernelExC(&launch, function, addresses);
  };
  const cudaError_t error = call(std::forward<Args>(args)...);
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();
  return CudaStatus(error,
                    "cudaLaunchKernelExC",
                    absl::StrCat(config.kernel,
                                 " (grid ",
                                 config.grid.x,
                                 ", clusters of ",
                                 cluster,
                                 ", shared memory ",
                                 config.shared_bytes,
                                 " bytes)"));
}

}  // namespace pagoda::kernels::cuda
