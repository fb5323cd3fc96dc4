#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/device_group.h"
#include "pagoda/internal/v1/worker.pb.h"
#include "parallel/process_group.h"

namespace pagoda::engine {

// A worker among those that share its model: they meet on the host while they load, and on their
// devices in every step. Alone, nothing here waits or fails. Every rank makes the same calls.
// Thread-compatible.
class RankGroup {
 public:
  // `host` is null for one rank.
  explicit RankGroup(std::unique_ptr<parallel::ProcessGroup> host) : host_(std::move(host)) {}

  // INVALID_ARGUMENT unless the worker's place is its place in the group.
  absl::Status CheckPlace(const internal::v1::OpenWorker& open) const;
  // Makes the group of devices. The backend outlives it, until Close.
  absl::Status Open(kernels::Backend& backend, const internal::v1::ServerConfig& config);
  // Graphs with ops of the devices are gone. Where steps are under way, which may wait for ranks
  // that never come, they are told to end.
  void Close(bool has_steps);

  // ---- On the host. A rank waits as long as another takes: the daemon watches over them.
  absl::Status Meet() { return LeastOf(0).status(); }
  // The least of every rank's.
  absl::StatusOr<int64_t> LeastOf(int64_t own);

  // The rank has enqueued another step: of ranks that wait for each other, the others have not.
  void NoteStep() {
    if (host_ != nullptr) host_->NoteProgress();
  }

  // What ops of the devices have taken since this was called last, where the host measures it; the
  // host knows nothing of ops that devices run by themselves.
  int64_t TakeOpNs() { return std::exchange(op_ns_, 0); }

  // Null for one rank.
  kernels::DeviceGroup* devices() const { return devices_.get(); }
  int ranks_on_device() const { return devices_ == nullptr ? 1 : devices_->ranks_on_device(); }
  // Whether what steps so far have given counts.
  absl::Status Poll() { return devices_ == nullptr ? absl::OkStatus() : devices_->Poll(); }

 private:
  // ---- Constant after Open.
  const std::unique_ptr<parallel::ProcessGroup> host_;
  std::unique_ptr<kernels::DeviceGroup> devices_;

  int64_t op_ns_ = 0;
};

// The device of a rank.
int DeviceIndexOf(const internal::v1::WorkerConfig& worker, uint32_t rank);

}  // namespace pagoda::engine
