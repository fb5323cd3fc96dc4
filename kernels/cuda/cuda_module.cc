#include "kernels/cuda_module.h"

#include "kernels/cuda/cuda_backend.h"

// The two symbols that pagoda_cuda.so exports; all else in it is hidden.

extern "C" __attribute__((visibility("default"))) uint64_t pagoda_cuda_module_abi() {
  return pagoda::kernels::kCudaModuleAbi;
}

extern "C" __attribute__((visibility("default"))) void pagoda_cuda_module_create(
    const pagoda::kernels::BackendOptions& options,
    absl::StatusOr<std::unique_ptr<pagoda::kernels::Backend>>* result) {
  *result = pagoda::kernels::cuda::CudaBackend::Create(options);
}
