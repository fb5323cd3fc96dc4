#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "engine/model/slot_table.h"
#include "kernels/backend.h"
#include "kernels/base/dtype.h"
#include "pagoda/internal/v1/config.pb.h"

namespace pagoda::engine {

// Where everything that a forward pass computes lies within one arena, in bytes from its start. A
// layer needs four arrays: the residual stream, its norm, one for what the wide products give (q, k
// and v; gate and up), and one for what is made of that (the attention's output; the gated
// activation).
struct ActivationPlan {
  int32_t max_tokens = 0;
  int32_t max_logit_rows = 0;
  int32_t logits_stride = 0;  // elements; rows stay aligned

  size_t hidden_offset = 0;
  size_t normed_offset = 0;
  size_t wide_offset = 0;
  size_t inner_offset = 0;
  // Mixtures of experts: logits of the router, and the arrays of ExpertRouting.
  size_t router_offset = 0;
  size_t group_offsets_offset = 0;
  size_t entry_rows_offset = 0;
  size_t row_experts_offset = 0;
  size_t row_entries_offset = 0;
  size_t row_weights_offset = 0;
  size_t logit_hidden_offset = 0;
  size_t logits_offset = 0;
  // Models that ranks share: the logits of a rank's ids.
  size_t rank_logits_offset = 0;
  size_t total_bytes = 0;
};

// A step computes logits in chunks of at most max_logit_rows rows, enough for every sequence to
// sample at once unless the vocabulary makes that too large; prompt log-probabilities take as many
// chunks as they need. `model` is what one of `num_ranks` computes. Pure.
ActivationPlan PlanActivations(const ModelConfig& model,
                               const StepLimits& limits,
                               DType dtype,
                               int32_t num_ranks = 1);

// Bytes of that plan on the device of the configuration, for weights of `dtype`; what a memory plan
// needs.
uint64_t ActivationBytes(const internal::v1::ServerConfig& config,
                         const ModelConfig& model,
                         DType dtype,
                         int32_t num_ranks = 1);

// The arena.
class Activations {
 public:
  static absl::StatusOr<Activations> Allocate(kernels::Backend& backend,
                                              const ActivationPlan& plan);

  void* hidden() const { return At(plan_.hidden_offset); }
  void* normed() const { return At(plan_.normed_offset); }
  void* wide() const { return At(plan_.wide_offset); }
  void* inner() const { return At(plan_.inner_offset); }
  // ---- REQUIRES: a model with experts.
  float* router_logits() const { return static_cast<float*>(At(plan_.router_offset)); }
  kernels::ExpertRouting routing() const;
  // ----
  void* logit_hidden() const { return At(plan_.logit_hidden_offset); }
  float* logits() const { return static_cast<float*>(At(plan_.logits_offset)); }
  // REQUIRES: several ranks. [max_logit_rows, ids of a rank].
  float* rank_logits() const { return static_cast<float*>(At(plan_.rank_logits_offset)); }
  const ActivationPlan& plan() const { return plan_; }

 private:
  void* At(size_t offset) const { return buffer_.as<char>() + offset; }

  ActivationPlan plan_;
  kernels::Buffer buffer_;
};

}  // namespace pagoda::engine
