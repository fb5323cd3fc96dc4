#include <cstdlib>
#include <memory>

#include "tests/kernels/cuda/device_fixture.h"

// Checks of the cuda backend on a GPU: `cuda_backend_check [part of a name ...]`.

int main(int argc, char** argv) {
  using namespace pagoda::kernels;
  // Plans of earlier builds must not hide what is measured now.
  char folder[] = "/tmp/pagoda-check-XXXXXX";
  if (mkdtemp(folder) != nullptr) setenv("XDG_CACHE_HOME", folder, 1);
  auto opened = cuda::CudaBackend::Create({});
  if (!opened.ok()) return CheckRunner::NoDevice(opened.status());
  auto& backend = static_cast<cuda::CudaBackend&>(**opened);
  CheckRunner runner(argc, argv);
  cuda::RunBackendCases(runner, backend);
  cuda::RunElementwiseCases(runner, backend);
  cuda::RunLayersCases(runner, backend);
  cuda::RunMoeCases(runner, backend);
  cuda::RunWeightCases(runner, backend);
  cuda::RunSampleCases(runner, backend);
  cuda::RunLinearCases(runner, backend);
  cuda::RunFusedLinearCases(runner, backend);
  cuda::RunFaultCases(runner, backend);
  return runner.Finish();
}
