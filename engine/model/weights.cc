#include "engine/model/weights.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// Wide enough for every backend's vector loads, and so that no two weights share a cache line.
constexpr size_t kAlignmentBytes = 256;

constexpr absl::string_view kRoleNames[kNumWeightRoles] = {
    "embedding",
    "position embedding",
    "embedding norm",
    "embedding norm bias",
    "input norm",
    "input norm bias",
    "qkv",
    "qkv bias",
    "q norm",
    "k norm",
    "attention output",
    "attention output bias",
    "attention output norm",
    "post-attention norm",
    "post-attention norm bias",
    "gate and up",
    "gate and up bias",
    "down",
    "down bias",
    "router",
    "experts' gate and up",
    "experts' down",
    "MLP output norm",
    "final norm",
    "final norm bias",
    "lm_head",
};

size_t AlignUp(size_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

}  // namespace

absl::StatusOr<Weights> Weights::Allocate(kernels::Backend& backend,
                                          std::vector<WeightPlan> plans,
                                          DType dtype) {
  Weights weights;
  weights.dtype_ = dtype;
  weights.plans_ = std::move(plans);
  int32_t last_layer = kNoLayer;
  for (const WeightPlan& plan : weights.plans_) last_layer = std::max(last_layer, plan.layer);
  weights.plan_of_.assign(weights.IndexOf(WeightRole::kEmbedding, last_layer + 1), -1);

  std::vector<size_t> offsets;
  size_t total_bytes = 0;
  for (size_t i = 0; i < weights.plans_.size(); ++i) {
    const WeightPlan& plan = weights.plans_[i];
    kernels::LinearWeight weight = {.format = kernels::WeightFormat::kRowMajor,
                                    .dtype = DType::kFloat32,
                                    .n = plan.n,
                                    .k = plan.k};
    if (!plan.is_vector) {
      weight.dtype = dtype;
      weight.format = backend.PreferredFormat(dtype, plan.n, plan.k);
    }
    offsets.push_back(total_bytes);
    total_bytes += AlignUp(plan.is_vector ? static_cast<size_t>(plan.n) * sizeof(float)
                                          : backend.LinearBytes(weight));
    weights.weights_.push_back(weight);
    weights.plan_of_[weights.IndexOf(plan.role, plan.layer)] = static_cast<int32_t>(i);
  }
  PAGODA_ASSIGN_OR_RETURN(weights.buffer_, backend.Allocate(total_bytes, "weights"));
  for (size_t i = 0; i < offsets.size(); ++i) {
    weights.weights_[i].data = weights.buffer_.as<char>() + offsets[i];
  }
  return weights;
}

bool Weights::Has(WeightRole role, int32_t layer) const {
  const size_t idx = IndexOf(role, layer);
  return idx < plan_of_.size() && plan_of_[idx] >= 0;
}

const kernels::LinearWeight& Weights::matrix(WeightRole role, int32_t layer) const {
  PAGODA_CHECK(Has(role, layer));
  return weights_[static_cast<size_t>(plan_of_[IndexOf(role, layer)])];
}

const float* Weights::vector(WeightRole role, int32_t layer) const {
  if (!Has(role, layer)) return nullptr;
  return static_cast<const float*>(matrix(role, layer).data);
}

std::string WeightName(const WeightPlan& plan) {
  const absl::string_view role = kRoleNames[static_cast<size_t>(plan.role)];
  return plan.layer == kNoLayer ? std::string(role) : absl::StrCat(role, " of layer ", plan.layer);
}

}  // namespace pagoda::engine
