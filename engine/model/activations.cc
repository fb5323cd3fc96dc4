#include "engine/model/activations.h"

#include <algorithm>

#include "engine/model/weight_table.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

constexpr size_t kAlignmentBytes = 256;
// A 64-byte vector of float32.
constexpr int32_t kLogitsAlignment = 16;
// Bound of one chunk of logits: 512 sequences of a vocabulary of 128k, and far more than one chunk
// of a prompt needs to keep a device busy.
constexpr size_t kMaxLogitsBytes = size_t{256} << 20;
// Few sequences still get chunks that are worth a product.
constexpr int32_t kMinLogitRows = 16;

}  // namespace

ActivationPlan PlanActivations(const ModelConfig& model,
                               const StepLimits& limits,
                               DType dtype,
                               int32_t num_ranks) {
  const int64_t q_width = int64_t{model.num_heads} * model.head_dim;
  const int64_t qkv_width = q_width + 2 * int64_t{model.num_kv_heads} * model.head_dim;
  ActivationPlan plan;
  plan.max_tokens = limits.max_step_tokens;
  plan.logits_stride =
      (model.vocab_size + kLogitsAlignment - 1) / kLogitsAlignment * kLogitsAlignment;
  const size_t logits_row_bytes = static_cast<size_t>(plan.logits_stride) * sizeof(float);
  const int32_t wanted_rows =
      std::min(std::max(limits.num_slots, kMinLogitRows), limits.max_step_tokens);
  plan.max_logit_rows = static_cast<int32_t>(
      std::clamp<size_t>(kMaxLogitsBytes / logits_row_bytes, 1, static_cast<size_t>(wanted_rows)));

  const auto place = [&plan](size_t rows, size_t row_bytes) {
    const size_t offset = plan.total_bytes;
    plan.total_bytes +=
        (rows * row_bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    return offset;
  };
  const size_t element = DTypeBytes(dtype);
  const size_t tokens = static_cast<size_t>(plan.max_tokens);
  const size_t logit_rows = static_cast<size_t>(plan.max_logit_rows);
  const size_t hidden_bytes = static_cast<size_t>(model.hidden_size) * element;
  plan.hidden_offset = place(tokens, hidden_bytes);
  plan.normed_offset = place(tokens, hidden_bytes);
  int64_t wide = std::max<int64_t>(qkv_width, 2 * int64_t{model.intermediate_size});
  int64_t inner = std::max<int64_t>(q_width, model.intermediate_size);
  if (model.experts) {
    const int64_t entries = model.experts->experts_per_token;
    wide = std::max(wide, entries * 2 * model.experts->intermediate_size);
    wide = std::max(wide, entries * model.hidden_size);
    inner = std::max(inner, entries * model.experts->intermediate_size);
  }
  plan.wide_offset = place(tokens, static_cast<size_t>(wide) * element);
  plan.inner_offset = place(tokens, static_cast<size_t>(inner) * element);
  if (model.experts) {
    const size_t num_experts = static_cast<size_t>(model.experts->num_experts);
    const size_t entry_bytes =
        static_cast<size_t>(model.experts->experts_per_token) * sizeof(int32_t);
    plan.router_offset = place(tokens, num_experts * sizeof(float));
    plan.group_offsets_offset = place(num_experts + 1, sizeof(int32_t));
    plan.entry_rows_offset = place(tokens, entry_bytes);
    plan.row_experts_offset = place(tokens, entry_bytes);
    plan.row_entries_offset = place(tokens, entry_bytes);
    plan.row_weights_offset = place(tokens, entry_bytes);
  }
  plan.logit_hidden_offset = place(logit_rows, hidden_bytes);
  plan.logits_offset = place(logit_rows, logits_row_bytes);
  if (num_ranks > 1) {
    const auto num_ids = static_cast<size_t>(PaddedShare(model.vocab_size, num_ranks));
    plan.rank_logits_offset = place(logit_rows, num_ids * sizeof(float));
  }
  return plan;
}

uint64_t ActivationBytes(const internal::v1::ServerConfig& config,
                         const ModelConfig& model,
                         DType dtype,
                         int32_t num_ranks) {
  if (config.worker().device() == "sim") return 0;
  const StepLimits limits = {
      .num_slots = static_cast<int32_t>(config.engine().max_num_seqs()),
      .max_step_tokens = static_cast<int32_t>(config.engine().max_num_batched_tokens())};
  // As Backend::ActivationDType says.
  const DType activation_dtype = config.worker().device() == "cpu" ? DType::kFloat32 : dtype;
  return PlanActivations(model, limits, activation_dtype, num_ranks).total_bytes;
}

absl::StatusOr<Activations> Activations::Allocate(kernels::Backend& backend,
                                                  const ActivationPlan& plan) {
  Activations activations;
  activations.plan_ = plan;
  PAGODA_ASSIGN_OR_RETURN(activations.buffer_, backend.Allocate(plan.total_bytes, "activations"));
  return activations;
}

kernels::ExpertRouting Activations::routing() const {
  return {.group_offsets = static_cast<int32_t*>(At(plan_.group_offsets_offset)),
          .entry_rows = static_cast<int32_t*>(At(plan_.entry_rows_offset)),
          .row_experts = static_cast<int32_t*>(At(plan_.row_experts_offset)),
          .row_entries = static_cast<int32_t*>(At(plan_.row_entries_offset)),
          .row_weights = static_cast<float*>(At(plan_.row_weights_offset))};
}

}  // namespace pagoda::engine
