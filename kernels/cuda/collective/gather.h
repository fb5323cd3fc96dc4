#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/collective/peer_view.h"
#include "kernels/cuda/device_context.h"

namespace pagoda::kernels::cuda {

// One launch that moves bytes between ranks as they are.
// REQUIRES: rows * row_bytes <= kMaxGatherBytes.
inline constexpr int64_t kMaxGatherBytes = int64_t{1} << 31;
struct GatherArgs {
  PeerView view;
  const char* x = nullptr;  // what this rank sends: [rows, row_bytes]; null: nothing
  char* y = nullptr;        // [rows, y_row_bytes], rows y_stride_bytes apart
  int64_t rows = 0;
  int64_t row_bytes = 0;
  int64_t y_row_bytes = 0;
  int64_t y_stride_bytes = 0;
  // A broadcast: y [rows, row_bytes] becomes this rank's x. Negative: a gather.
  int root = -1;
};

absl::Status LaunchGather(const DeviceContext& context, const GatherArgs& args, bool programmatic);

}  // namespace pagoda::kernels::cuda
