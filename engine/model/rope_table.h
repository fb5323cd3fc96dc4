#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "kernels/backend.h"

namespace pagoda::engine {

// Cosines and sines of every position on the device, times the attention factor: [num_positions,
// dim], dim / 2 cosines, then sines. Empty where nothing is rotated.
struct RopeTable {
  kernels::Buffer buffer;
  int64_t num_positions = 0;
  int32_t dim = 0;

  static absl::StatusOr<RopeTable> Make(kernels::Backend& backend,
                                        const RopeConfig& rope,
                                        int32_t dim,
                                        int32_t num_positions);
};

}  // namespace pagoda::engine
