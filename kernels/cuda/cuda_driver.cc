#include "kernels/cuda/cuda_driver.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "kernels/base/device_fault.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/device_error.h"
#include "kernels/cuda/launch.h"

namespace pagoda::kernels::cuda {
namespace {

absl::Status Check(cudaError_t error, absl::string_view call) {
  if (error != cudaSuccess) (void)cudaGetLastError();
  return CudaStatus(error, call, "opening the device");
}

// Not even what every process needs to use the device.
absl::Status NoContextMemoryError(int device_index) {
  return WithDeviceFault(absl::ResourceExhaustedError(absl::StrCat(
                             "device memory for the context of a process could not be had on GPU ",
                             device_index,
                             ": other processes hold it (nvidia-smi shows them)")),
                         DeviceFault::kNoMemory);
}

}  // namespace

int CudaDriver::SupportedCudaVersion() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

absl::StatusOr<int> CudaDriver::NumDevices() {
  int num_devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&num_devices);
  if (error == cudaErrorNoDevice) {
    (void)cudaGetLastError();
    return 0;
  }
  if (error == cudaErrorInsufficientDriver) {
    (void)cudaGetLastError();
    return DriverTooOldError(SupportedCudaVersion(), CUDART_VERSION);
  }
  PAGODA_RETURN_IF_ERROR(Check(error, "cudaGetDeviceCount"));
  return num_devices;
}

absl::StatusOr<DeviceFacts> CudaDriver::Select(int device_index) {
  // Makes the context, which needs memory.
  const cudaError_t selected = cudaSetDevice(device_index);
  if (selected == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return NoContextMemoryError(device_index);
  }
  PAGODA_RETURN_IF_ERROR(Check(selected, "cudaSetDevice"));
  cudaDeviceProp properties = {};
  PAGODA_RETURN_IF_ERROR(
      Check(cudaGetDeviceProperties(&properties, device_index), "cudaGetDeviceProperties"));
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  PAGODA_RETURN_IF_ERROR(Check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo"));
  return DeviceFacts{.name = properties.name,
                     .major = properties.major,
                     .minor = properties.minor,
                     .num_sms = properties.multiProcessorCount,
                     .max_block_shared_bytes = static_cast<int>(properties.sharedMemPerBlockOptin),
                     .l2_bytes = static_cast<uint64_t>(properties.l2CacheSize),
                     .free_bytes = free_bytes,
                     .total_bytes = total_bytes};
}

}  // namespace pagoda::kernels::cuda
