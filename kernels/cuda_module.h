#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

// The whole interface between the executable and pagoda_cuda.so: two symbols that the module
// exports and OpenBackend looks up. Both sides are built from one tree by one compiler, so C++
// types cross the border; the ABI number, asked for before anything else is called, is what makes a
// module of another build an error instead of a crash.

namespace pagoda::kernels {

inline constexpr char kCudaModuleFile[] = "pagoda_cuda.so";
inline constexpr char kCudaModuleAbiSymbol[] = "pagoda_cuda_module_abi";
inline constexpr char kCudaModuleCreateSymbol[] = "pagoda_cuda_module_create";

// Changes by hand with the virtual functions of Backend and with the meaning of a field; the sizes
// of everything that crosses the border are mixed in.
inline constexpr uint64_t kCudaModuleAbi = [] {
  uint64_t abi = 4;
  for (const uint64_t size :
       {sizeof(BackendOptions),       sizeof(DeviceInfo),          sizeof(Buffer),
        sizeof(LinearParams),         sizeof(PackLinearParams),    sizeof(FillNormalParams),
        sizeof(EmbeddingParams),      sizeof(GatherRowsParams),    sizeof(RmsNormParams),
        sizeof(SiluMulParams),        sizeof(ResolveTokensParams), sizeof(ScatterParams),
        sizeof(AttentionBatch),       sizeof(CopyBlocksParams),    sizeof(RopeKvWriteParams),
        sizeof(PagedAttentionParams), sizeof(SampleRow),           sizeof(SampleParams),
        sizeof(CombineExpertsParams), sizeof(DeviceGroupOptions),  sizeof(AllReduceNormParams)}) {
    abi = abi * 1099511628211u + size;
  }
  return abi;
}();

using CudaModuleAbiFn = uint64_t();
// Sets `*result`; an error says why there is no usable device (no driver, no GPU, too old) and what
// to do.
using CudaModuleCreateFn = void(const BackendOptions& options,
                                absl::StatusOr<std::unique_ptr<Backend>>* result);

}  // namespace pagoda::kernels

// Defined by the module alone, with default visibility.
extern "C" {
uint64_t pagoda_cuda_module_abi();
void pagoda_cuda_module_create(const pagoda::kernels::BackendOptions& options,
                               absl::StatusOr<std::unique_ptr<pagoda::kernels::Backend>>* result);
}
