#include <cstdlib>
#include <string>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/cuda_module.h"
#include "tests/fakes/fake_driver.h"
#include "tests/fakes/graph_backend.h"

// The driver is what the environment variable PAGODA_FAKE_DRIVER describes (FakeDriver::Parse). A
// device that opens is of no use, unless "serves=1": then it is a CPU that records graphs, at
// 0000:00:01.0 on the bus, the next at 0000:00:02.0.

namespace {

using pagoda::kernels::Backend;
using pagoda::kernels::BackendOptions;
using pagoda::kernels::GraphBackend;

absl::StatusOr<std::unique_ptr<Backend>> OpenFake(const BackendOptions& options) {
  namespace cuda = pagoda::kernels::cuda;
  const char* const description = std::getenv("PAGODA_FAKE_DRIVER");
  PAGODA_ASSIGN_OR_RETURN(cuda::FakeDriver driver,
                          cuda::FakeDriver::Parse(description == nullptr ? "" : description));
  const auto facts = cuda::ProbeDevice(driver,
                                       {.device_index = options.device_index,
                                        .needed_cuda_version = 13000,
                                        .least_free_bytes = uint64_t{256} << 20});
  PAGODA_RETURN_IF_ERROR(facts.status());
  if (!driver.serves)
    return absl::UnimplementedError("the fake module opened its device and can do no more");
  PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<Backend> cpu,
                          pagoda::kernels::OpenBackend("cpu", options));
  auto backend = std::make_unique<GraphBackend>(std::move(cpu));
  backend->pci_bus_id = "0000:00:0" + std::to_string(options.device_index + 1) + ".0";
  return backend;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) uint64_t pagoda_cuda_module_abi() {
  return std::getenv("PAGODA_FAKE_ABI") == nullptr ? pagoda::kernels::kCudaModuleAbi : 1;
}

extern "C" __attribute__((visibility("default"))) void pagoda_cuda_module_create(
    const BackendOptions& options, absl::StatusOr<std::unique_ptr<Backend>>* result) {
  *result = OpenFake(options);
}
