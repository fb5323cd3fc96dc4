#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/base/dtype.h"
#include "kernels/cuda/collective/collective_plan.h"
#include "kernels/cuda/collective/peer_view.h"
#include "kernels/cuda/device_context.h"

namespace pagoda::kernels::cuda {

// One launch of a reduction over peers' memory. Tiles are rows of y where there is a norm; else
// stretches as long as a block has threads, of one array.
struct ReduceArgs {
  PeerView view;
  const void* x = nullptr;         // [count]
  const void* residual = nullptr;  // [count], or null
  void* sum = nullptr;             // [count]
  const float* weight = nullptr;   // [tile_count]; null: no norm
  void* y = nullptr;               // [count], with a norm
  int64_t count = 0;
  int64_t tile_count = 0;  // elements; of the last tile there may be fewer
  int num_tiles = 0;
  int tile_vectors = 0;  // vectors that hold a tile's elements
  int num_vectors = 0;   // of all tiles
  float epsilon = 0.0f;
  float weight_offset = 0.0f;
  // All arrays are aligned to 16 bytes, and all vectors of them are whole.
  bool is_whole = false;
  // From LayOutReduce.
  int vectors_per_sender = 0;
  int first_sum = 0;
};

// What a launch is, besides its arguments.
struct ReduceLaunch {
  Shots shots = Shots::kOne;
  ReduceGrid grid;
  DType dtype = DType::kBFloat16;
  // See Launch in launch.h. Never where ranks share a device: a kernel that waits for its
  // predecessor would hold what another rank needs to come as far.
  bool programmatic = false;
};

absl::Status LaunchReduce(const DeviceContext& context,
                          const ReduceLaunch& launch,
                          const ReduceArgs& args);

// Instantiations by type; each in its own file.
template <typename T>
absl::Status LaunchReduceOf(const DeviceContext& context,
                            const ReduceLaunch& launch,
                            const ReduceArgs& args);

}  // namespace pagoda::kernels::cuda
