#include <cstdlib>

#include "kernels/cuda_module.h"
#include "tests/fakes/fake_driver.h"

// The driver is what the environment variable PAGODA_FAKE_DRIVER describes (FakeDriver::Parse). A
// device that opens is of no use: the module has no kernels.

namespace {

absl::Status OpenFake(const pagoda::kernels::BackendOptions& options) {
  namespace cuda = pagoda::kernels::cuda;
  const char* const description = std::getenv("PAGODA_FAKE_DRIVER");
  auto driver = cuda::FakeDriver::Parse(description == nullptr ? "" : description);
  if (!driver.ok()) return driver.status();
  const auto facts = cuda::ProbeDevice(*driver,
                                       {.device_index = options.device_index,
                                        .needed_cuda_version = 13000,
                                        .least_free_bytes = uint64_t{256} << 20});
  if (!facts.ok()) return facts.status();
  return absl::UnimplementedError("the fake module opened its device and can do no more");
}

}  // namespace

extern "C" __attribute__((visibility("default"))) uint64_t pagoda_cuda_module_abi() {
  return std::getenv("PAGODA_FAKE_ABI") == nullptr ? pagoda::kernels::kCudaModuleAbi : 1;
}

extern "C" __attribute__((visibility("default"))) void pagoda_cuda_module_create(
    const pagoda::kernels::BackendOptions& options,
    absl::StatusOr<std::unique_ptr<pagoda::kernels::Backend>>* result) {
  *result = OpenFake(options);
}
