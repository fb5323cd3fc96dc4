#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/weight_table.h"
#include "kernels/backend.h"
#include "kernels/base/dtype.h"

namespace pagoda::engine {

// The weights of a model, or of a rank's part of it, in one allocation of the device. Immutable
// once loaded.
class Weights {
 public:
  // Allocates; contents are zeros.
  static absl::StatusOr<Weights> Allocate(kernels::Backend& backend,
                                          std::vector<WeightPlan> plans,
                                          DType dtype);

  bool Has(WeightRole role, int32_t layer = kNoLayer) const;
  // REQUIRES: Has, and a matrix.
  const kernels::LinearWeight& matrix(WeightRole role, int32_t layer = kNoLayer) const;
  // float32; null when the model has no such vector.
  const float* vector(WeightRole role, int32_t layer = kNoLayer) const;

  const std::vector<WeightPlan>& plans() const { return plans_; }
  // The i-th plan's weight. Vectors are row-major float32 [n, 1].
  const kernels::LinearWeight& weight(size_t plan_idx) const { return weights_[plan_idx]; }
  DType dtype() const { return dtype_; }
  uint64_t size_bytes() const { return buffer_.size_bytes(); }

 private:
  size_t IndexOf(WeightRole role, int32_t layer) const {
    return static_cast<size_t>(layer + 1) * kNumWeightRoles + static_cast<size_t>(role);
  }

  std::vector<WeightPlan> plans_;
  std::vector<kernels::LinearWeight> weights_;
  std::vector<int32_t> plan_of_;  // by IndexOf; -1: none
  DType dtype_ = DType::kBFloat16;
  kernels::Buffer buffer_;
};

// A name for messages, such as "kQkv of layer 3" would be: "qkv of layer 3".
std::string WeightName(const WeightPlan& plan);

}  // namespace pagoda::engine
