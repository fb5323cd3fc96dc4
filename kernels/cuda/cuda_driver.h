#pragma once

#include "kernels/cuda/device_probe.h"

namespace pagoda::kernels::cuda {

// The driver of this machine, through the CUDA runtime.
class CudaDriver : public Driver {
 public:
  int SupportedCudaVersion() override;
  absl::StatusOr<int> NumDevices() override;
  absl::StatusOr<DeviceFacts> Select(int device_index) override;
};

}  // namespace pagoda::kernels::cuda
