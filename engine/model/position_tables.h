#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "engine/model/rope_table.h"
#include "kernels/backend.h"

namespace pagoda::engine {

// Heads of the model that a rank computes. num_all 0: all that the ModelConfig has.
struct HeadRange {
  int32_t first = 0;
  int32_t num_all = 0;
};

// How attention learns of positions.
struct PositionTables {
  RopeTable rope;
  RopeTable sliding_rope;        // empty where it is `rope`
  kernels::Buffer alibi_slopes;  // [num_heads] float32, or empty

  static absl::StatusOr<PositionTables> Make(kernels::Backend& backend,
                                             const ModelConfig& model,
                                             int32_t num_positions,
                                             const HeadRange& heads = {});

  const RopeTable& rope_of(const ModelConfig& model, int32_t layer) const {
    return sliding_rope.dim > 0 && model.HasWindow(layer) ? sliding_rope : rope;
  }
};

// One slope a head, falling as a power of two from 2^(-bias_max / n), with n the next power of two
// of the number of heads: every second of n slopes comes first where n is not that number.
std::vector<float> AlibiSlopes(int32_t num_heads, float bias_max);

}  // namespace pagoda::engine
