#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "kernels/cuda/device_probe.h"

namespace pagoda::kernels::cuda {

// A machine that a test describes. Unless told otherwise it has one H200 and a driver of CUDA 13.0.
class FakeDriver : public Driver {
 public:
  FakeDriver() = default;
  // From "KEY=VALUE,...": cuda, devices, capability (of every device), free_mib, serves.
  static absl::StatusOr<FakeDriver> Parse(absl::string_view description);

  int SupportedCudaVersion() override { return cuda_version; }
  absl::StatusOr<int> NumDevices() override { return num_devices; }
  absl::StatusOr<DeviceFacts> Select(int device_index) override;

  int cuda_version = 13000;
  int num_devices = 1;
  DeviceFacts facts = {.name = "NVIDIA H200",
                       .major = 9,
                       .free_bytes = uint64_t{139} << 30,
                       .total_bytes = uint64_t{140} << 30};
  bool serves = false;  // its devices can be computed on
  int selected = -1;
};

}  // namespace pagoda::kernels::cuda
