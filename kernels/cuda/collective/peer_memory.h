#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device_context.h"
#include "kernels/device_group.h"

namespace pagoda::kernels::cuda {

// Device memory that each rank has, and that all can write: of the same size everywhere. Ranks are
// processes, on one device or several, or streams of one process. Memory of another process is
// opened by CUDA IPC; every device must reach the others' memory.
// Let go of it when no rank has work under way.
class PeerMemory {
 public:
  // Every rank calls it. What is filled with `fill_byte` is so on all ranks when it returns.
  static absl::StatusOr<std::unique_ptr<PeerMemory>> Create(const DeviceContext& context,
                                                            const DeviceGroupOptions& options,
                                                            size_t size_bytes,
                                                            int fill_byte);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Rank `rank`'s memory, as an address of this process.
  char* of(int rank) const { return static_cast<char*>(ranks_[rank].data); }
  // How many ranks have their memory on this device, this one among them.
  int ranks_on_device() const { return ranks_on_device_; }

 private:
  struct Rank {
    void* data = nullptr;
    bool is_opened = false;  // by IPC
  };

  PeerMemory() = default;
  absl::Status Open(const DeviceContext& context,
                    const DeviceGroupOptions& options,
                    size_t size_bytes);

  int own_rank_ = 0;
  int ranks_on_device_ = 1;
  std::vector<Rank> ranks_;
};

}  // namespace pagoda::kernels::cuda
