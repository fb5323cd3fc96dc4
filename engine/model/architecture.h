#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/model/config_fields.h"
#include "engine/model/forward_pass.h"
#include "engine/model/model_config.h"
#include "engine/model/model_tensors.h"

namespace pagoda::engine {

// What Pagoda knows of one value of config.json's architectures[0]. An architecture is one file
// under architectures/ and one line in architecture.cc.
struct Architecture {
  absl::string_view name;
  // Reads the fields that describe the model's shape and arithmetic, mostly with config_readers.h.
  void (*read_config)(ConfigFields& fields, ModelConfig& config);
  ModelTensors tensors;
  // From tokens to the residual stream after the last layer.
  absl::Status (*run_layers)(const ForwardPass& pass);

  // The tensors of the whole model.
  std::vector<WeightSpec> weights(const ModelConfig& config) const {
    return MakeWeightSpecs(tensors, config);
  }
};

// Null when there is none of that name.
const Architecture* FindArchitecture(absl::string_view name);
// For messages: every name, separated by commas.
std::string ArchitectureNames();

}  // namespace pagoda::engine
