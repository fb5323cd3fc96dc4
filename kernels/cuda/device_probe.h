#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace pagoda::kernels::cuda {

// What a device says of itself.
struct DeviceFacts {
  std::string name;
  int major = 0;  // compute capability
  int minor = 0;
  int num_sms = 0;
  int max_block_shared_bytes = 0;
  uint64_t l2_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
};

// The driver, as far as opening a device asks it.
class Driver {
 public:
  virtual ~Driver() = default;

  // Of CUDA that the driver supports: 1000 * major + 10 * minor; 0 without a driver.
  virtual int SupportedCudaVersion() = 0;
  virtual absl::StatusOr<int> NumDevices() = 0;
  // Makes the device the calling thread's.
  virtual absl::StatusOr<DeviceFacts> Select(int device_index) = 0;
};

struct ProbeOptions {
  int device_index = 0;
  int needed_cuda_version = 0;    // that this build was made with
  std::string visible_devices;    // CUDA_VISIBLE_DEVICES, for a message
  uint64_t least_free_bytes = 0;  // that the backend itself takes
};

// Selects the device if this build can use it; else an error with its DeviceFault, for each reason
// another.
absl::StatusOr<DeviceFacts> ProbeDevice(Driver& driver, const ProbeOptions& options);

}  // namespace pagoda::kernels::cuda
