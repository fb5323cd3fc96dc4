#include "kernels/cuda/device_error.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/device_fault.h"

namespace pagoda::kernels::cuda {
namespace {

std::string CudaVersion(int version) {
  return absl::StrFormat("%d.%d", version / 1000, version % 1000 / 10);
}

}  // namespace

absl::Status NoDriverError() {
  return WithDeviceFault(
      absl::NotFoundError(
          "no NVIDIA driver was found (libcuda.so.1 does not load or reports no version): install "
          "driver 580 or newer, or give the container access to it (--gpus all)"),
      DeviceFault::kNoDriver);
}

absl::Status DriverTooOldError(int driver_version, int needed_version) {
  return WithDeviceFault(
      absl::FailedPreconditionError(absl::StrCat("the NVIDIA driver supports CUDA ",
                                                 CudaVersion(driver_version),
                                                 ", but this build needs CUDA ",
                                                 CudaVersion(needed_version),
                                                 ": install driver 580 or newer")),
      DeviceFault::kOldDriver);
}

absl::Status NoDeviceError(absl::string_view visible_devices) {
  return WithDeviceFault(
      absl::NotFoundError(absl::StrCat(
          "the NVIDIA driver sees no GPU",
          visible_devices.empty() ? ""
                                  : absl::StrCat(" (CUDA_VISIBLE_DEVICES=", visible_devices, ")"),
          ": check nvidia-smi")),
      DeviceFault::kNoDevice);
}

absl::Status NoSuchDeviceError(int device_index, int num_devices) {
  return WithDeviceFault(absl::NotFoundError(absl::StrCat("GPU ",
                                                          device_index,
                                                          " does not exist: the driver shows ",
                                                          num_devices,
                                                          ", numbered from 0")),
                         DeviceFault::kNoDevice);
}

absl::Status UnsupportedDeviceError(absl::string_view name, int major, int minor) {
  return WithDeviceFault(absl::FailedPreconditionError(absl::StrCat(
                             name,
                             " has compute capability ",
                             major,
                             ".",
                             minor,
                             "; this build has kernels for 9.0 (NVIDIA H100, H200) only",
                             major < 9 ? ": the GPU is too old" : "")),
                         DeviceFault::kOldDevice);
}

absl::Status DeviceOutOfMemoryError(absl::string_view purpose,
                                    uint64_t wanted_bytes,
                                    uint64_t free_bytes,
                                    uint64_t total_bytes) {
  return WithDeviceFault(
      absl::ResourceExhaustedError(absl::StrFormat(
          "%d bytes of device memory for %s could not be had: %d of %d bytes are free",
          wanted_bytes,
          purpose,
          free_bytes,
          total_bytes)),
      DeviceFault::kNoMemory);
}

}  // namespace pagoda::kernels::cuda
