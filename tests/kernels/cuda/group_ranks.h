#pragma once

#include <cuda_runtime_api.h>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/device_context.h"
#include "kernels/device_group.h"
#include "parallel/process_group.h"

namespace pagoda::kernels::cuda::test {

// The ranks of a group of devices, for checks and benchmarks: processes, or threads of one process
// whose streams share devices. Whoever starts them never touches a device, so that a rank may be
// killed, or die of an error, and the next ones get fresh contexts.

enum class RankKind { kProcesses, kThreads };

struct RankSetup {
  RankKind kind = RankKind::kProcesses;
  int num_ranks = 2;
  int num_devices = 1;  // ranks are dealt out to them
  int timeout_seconds = 60;
};

// What a rank has.
struct Rank {
  int rank = 0;
  int num_ranks = 1;
  DeviceContext context;
  parallel::ProcessGroup* host = nullptr;  // for what is not to be measured or tested

  DeviceGroupOptions Options() const {
    return {.rank = rank,
            .num_ranks = num_ranks,
            .exchange = [group = host](const void* own, void* all, size_t num_bytes) {
              return group->AllGather(own, all, num_bytes);
            }};
  }
  // All ranks' answers to a question; false also where a rank is gone.
  bool All(bool own) const;
};

// Runs `run` in each rank. Returns what went wrong, a line for each rank that did not return OK;
// empty: nothing. A rank that is killed by SIGKILL is no fault.
std::string RunRanks(const RankSetup& setup, const std::function<absl::Status(Rank&)>& run);

// Of this machine; asked in a process that ends.
int NumDevices();

// OK, or INTERNAL naming the call.
absl::Status Cuda(cudaError_t error, absl::string_view call);

}  // namespace pagoda::kernels::cuda::test
