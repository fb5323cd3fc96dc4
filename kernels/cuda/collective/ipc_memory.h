#pragma once

#include <cstddef>

namespace pagoda::kernels::cuda {

// Device memory that a rank of an ipc group shares: its control block, the slots of RegionLayout,
// at the alignment of an allocation, and what the first sum is made of. Pure.
struct IpcMemory {
  size_t first_slot = 0;
  size_t proof = 0;
  size_t total_bytes = 0;
};
IpcMemory LayOutIpcMemory(int num_ranks);

// What a rank takes for a group.
inline size_t IpcGroupBytes(int num_ranks) { return LayOutIpcMemory(num_ranks).total_bytes; }

// Of the first sum.
inline constexpr size_t kProofBytes = size_t{17} << 10;

}  // namespace pagoda::kernels::cuda
