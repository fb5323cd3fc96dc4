#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device_context.h"

namespace pagoda::kernels::cuda {

// How far the stream has come: a number in pinned memory that the stream itself raises, so that the
// host looks without calling the driver. Thread-compatible.
class StreamProgress {
 public:
  // `context` must outlive it.
  static absl::StatusOr<std::unique_ptr<StreamProgress>> Create(const DeviceContext& context);
  ~StreamProgress();
  StreamProgress(const StreamProgress&) = delete;
  StreamProgress& operator=(const StreamProgress&) = delete;

  // Enqueues a mark: it is reached when everything enqueued before has run, and what that wrote to
  // pinned memory can be read then. Marks count from 1. REQUIRES: nothing is being recorded.
  absl::StatusOr<uint64_t> Mark();
  // REQUIRES: Mark gave `mark`. A device that failed reaches no mark more: the driver is asked at
  // most once a millisecond, and its error returned.
  absl::StatusOr<bool> Reached(uint64_t mark);

  uint64_t last_mark() const { return last_mark_; }

 private:
  explicit StreamProgress(const DeviceContext& context) : context_(context) {}

  // ---- Constant.
  const DeviceContext& context_;
  uint64_t* reached_ = nullptr;  // pinned
  // ---- State.
  uint64_t last_mark_ = 0;
  int64_t asked_ns_ = 0;
};

}  // namespace pagoda::kernels::cuda
