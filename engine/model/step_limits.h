#pragma once

#include "engine/model/model_config.h"
#include "engine/model/slot_table.h"
#include "pagoda/internal/v1/config.pb.h"

namespace pagoda::engine {

// Bounds of plans from the configuration; INVALID_ARGUMENT naming the field that cannot be.
absl::StatusOr<StepLimits> MakeStepLimits(const internal::v1::ServerConfig& config,
                                          const ModelConfig& model,
                                          uint32_t num_kv_blocks);

}  // namespace pagoda::engine
