#pragma once

#include "engine/model/config_fields.h"
#include "engine/model/model_config.h"

namespace pagoda::engine {

// Reads rotary embedding settings in each spelling that checkpoints have:
//   rope_theta, with rope_scaling null or absent               (all versions)
//   rope_scaling {"type": ..., "factor": ...}                  (before transformers 4.43)
//   rope_scaling {"rope_type": ..., "factor": ...}             (4.43 to 4.57)
//   rope_parameters {"rope_type": ..., "rope_theta": ..., ...} (5.0 on)
// Where several are present they must agree. An unknown kind, a missing key and a key that is not
// understood are failures of `fields`.
RopeConfig ReadRopeConfig(ConfigFields& fields);

// Factors of the rotation angle: angle of pair i at position p = p * result[i], for i < rotary_dim
// / 2.
std::vector<double> RopeFrequencies(const RopeConfig& rope, int32_t rotary_dim);

}  // namespace pagoda::engine
