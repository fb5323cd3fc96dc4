#include "kernels/cuda/collective/ipc_memory.h"

#include "kernels/cuda/collective/collective_plan.h"
#include "kernels/cuda/collective/peer_view.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr size_t kAllocationAlignment = 256;

}  // namespace

IpcMemory LayOutIpcMemory(int num_ranks) {
  IpcMemory memory;
  memory.first_slot = (sizeof(PeerControl) + kAllocationAlignment - 1) / kAllocationAlignment *
                      kAllocationAlignment;
  memory.proof = memory.first_slot + LayOutRegion(num_ranks).total_bytes;
  memory.total_bytes = memory.proof + kProofBytes;
  return memory;
}

}  // namespace pagoda::kernels::cuda
