#include "kernels/cuda/device_probe.h"

#include "kernels/base/status_macros.h"
#include "kernels/cuda/device_error.h"

namespace pagoda::kernels::cuda {
namespace {

absl::Status CheckDriver(int supported_version, int needed_version) {
  if (supported_version == 0) return NoDriverError();
  // A driver runs programs of its own major version, whatever the minor one.
  if (supported_version / 1000 < needed_version / 1000) {
    return DriverTooOldError(supported_version, needed_version);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeviceFacts> ProbeDevice(Driver& driver, const ProbeOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckDriver(driver.SupportedCudaVersion(), options.needed_cuda_version));
  PAGODA_ASSIGN_OR_RETURN(const int num_devices, driver.NumDevices());
  if (num_devices == 0) return NoDeviceError(options.visible_devices);
  if (options.device_index < 0 || options.device_index >= num_devices) {
    return NoSuchDeviceError(options.device_index, num_devices);
  }
  PAGODA_ASSIGN_OR_RETURN(const DeviceFacts facts, driver.Select(options.device_index));
  if (facts.major != 9 || facts.minor != 0) {
    return UnsupportedDeviceError(facts.name, facts.major, facts.minor);
  }
  if (facts.free_bytes < options.least_free_bytes) {
    return DeviceOutOfMemoryError(
        "kernels and workspaces", options.least_free_bytes, facts.free_bytes, facts.total_bytes);
  }
  return facts;
}

}  // namespace pagoda::kernels::cuda
