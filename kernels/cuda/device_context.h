#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/launch.h"

namespace pagoda::kernels::cuda {

// What the launcher of an op knows of its device. One per backend, on the backend's one thread.
struct DeviceContext {
  // ---- Constant after opening.
  int device_index = 0;
  std::string label;  // "device 0 (NVIDIA H200)", for messages
  std::string name;   // "NVIDIA H200"
  int num_sms = 0;
  int max_block_shared_bytes = 0;  // dynamic shared memory a block may ask for
  size_t l2_bytes = 0;
  cudaStream_t stream = nullptr;

  // ---- State.
  // Weights were written by a kernel, and nothing was launched since. Kernels read weights before
  // they wait for the kernel ahead of them, so the next one must not be let in early.
  mutable bool weights_written = false;
  // Between BeginGraph and EndGraph.
  bool recording = false;
};

// Launches a kernel that calls WaitForPrevious in all its threads: it may start while the kernel
// before it runs.
template <typename... Params, typename... Args>
absl::Status Launch(const DeviceContext& context,
                    LaunchConfig config,
                    void (*kernel)(Params...),
                    Args&&... args) {
  config.programmatic = !std::exchange(context.weights_written, false);
  return Launch(config, context.stream, kernel, std::forward<Args>(args)...);
}

}  // namespace pagoda::kernels::cuda
