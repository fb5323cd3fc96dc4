#pragma once

#include <vector>

#include "engine/model/config_fields.h"
#include "engine/model/model_config.h"

namespace pagoda::engine {

// What the rest of config.json says about the rotary embedding.
struct RopeContext {
  double default_theta = 10000.0;  // where rope_theta is absent
  int32_t max_position_embeddings = 0;
  int32_t head_dim = 0;
  int32_t original_max_position_embeddings = 0;  // outside of the objects below; 0: none
  bool may_be_partial = false;                   // partial_rotary_factor other than 1 is allowed
  double rotary_fraction = 1.0;                  // where an object has none
};

// Reads rotary embedding settings in each spelling that checkpoints have:
//   rope_theta, with rope_scaling null or absent               (all versions)
//   rope_scaling {"type": ..., "factor": ...}                  (before transformers 4.43)
//   rope_scaling {"rope_type": ..., "factor": ...}             (4.43 to 4.57)
//   rope_parameters {"rope_type": ..., "rope_theta": ..., ...} (5.0 on)
// Where several are present they must agree. An unknown kind, a missing key and a key that is not
// understood are failures of `fields`.
RopeConfig ReadRopeConfig(ConfigFields& fields, const RopeContext& context);

// Reads one object of the last two spellings, such as each of those that rope_parameters holds
// where kinds of layers differ. `outer_theta`: a rope_theta outside of it.
RopeConfig ReadRopeObject(ConfigFields& fields,
                          absl::optional<double> outer_theta,
                          const RopeContext& context);

// Factors of the rotation angle: angle of pair i at position p = p * result[i], for i < rotary_dim
// / 2. One table serves every position of a context of `num_positions`, since rotated keys are
// cached: "dynamic" has the base of that context's length, "longrope" the long factors where it is
// longer than the original one.
std::vector<double> RopeFrequencies(const RopeConfig& rope,
                                    int32_t rotary_dim,
                                    int32_t num_positions);

}  // namespace pagoda::engine
