#include "tests/kernels/cuda/group_transport.h"

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/collective/ipc_group.h"
#include "kernels/cuda/collective/nccl_group.h"

namespace pagoda::kernels::cuda::test {

absl::StatusOr<std::unique_ptr<DeviceGroup>> MakeGroup(Transport transport,
                                                       const Rank& rank,
                                                       Shots shots,
                                                       int64_t timeout_ns) {
  DeviceGroupOptions options = rank.Options();
  options.timeout_ns = timeout_ns;
  if (transport == Transport::kNccl) return MakeNcclGroup(rank.context, options);
  return MakeIpcGroup(rank.context, options, shots);
}

absl::Status AwaitGroup(const Rank& rank, DeviceGroup& group, int64_t timeout_ms) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    const cudaError_t error = cudaStreamQuery(rank.context.stream);
    if (error == cudaSuccess) return group.Poll();
    if (error != cudaErrorNotReady) return Cuda(error, "cudaStreamQuery");
    (void)cudaGetLastError();
    if (std::chrono::steady_clock::now() > end) {
      return absl::DeadlineExceededError(
          absl::StrCat("the stream has not ended within ", timeout_ms, " ms"));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace pagoda::kernels::cuda::test
