#include "engine/model/forward_pass.h"

#include <cmath>

#include "engine/model/layer_ops.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

constexpr NormRoles kAttentionNorm = {.weight = WeightRole::kInputNorm,
                                      .bias = WeightRole::kInputNormBias};
constexpr NormRoles kMlpNorm = {.weight = WeightRole::kPostAttentionNorm,
                                .bias = WeightRole::kPostAttentionNormBias};
constexpr NormRoles kFinalNorm = {.weight = WeightRole::kFinalNorm,
                                  .bias = WeightRole::kFinalNormBias};
constexpr NormRoles kEmbeddingNorm = {.weight = WeightRole::kEmbeddingNorm,
                                      .bias = WeightRole::kEmbeddingNormBias};

BlockNorm NextLayerNorm(int32_t layer) { return {.layer = layer + 1, .roles = kAttentionNorm}; }

int64_t QkvStride(const ModelConfig& model) {
  return int64_t{model.num_heads + 2 * model.num_kv_heads} * model.head_dim;
}

// q and k through their norms, each head by itself or all heads as one row, as wide as the weights.
absl::Status NormaliseQk(const ForwardPass& pass, int32_t layer) {
  const ModelConfig& model = *pass.model;
  if (!pass.weights->Has(WeightRole::kQNorm, layer)) return absl::OkStatus();
  const float* const q_weight = pass.weights->vector(WeightRole::kQNorm, layer);
  const float* const k_weight = pass.weights->vector(WeightRole::kKNorm, layer);
  if (pass.weights->matrix(WeightRole::kQNorm, layer).n == model.head_dim) {
    return pass.backend->HeadNorm({.qkv = pass.activations->wide(),
                                   .rows = pass.batch->num_rows,
                                   .qkv_stride = QkvStride(model),
                                   .num_q_heads = model.num_heads,
                                   .num_kv_heads = model.num_kv_heads,
                                   .head_dim = model.head_dim,
                                   .q_weight = q_weight,
                                   .k_weight = k_weight,
                                   .epsilon = model.norm_eps,
                                   .weight_offset = model.norm_weight_offset,
                                   .dtype = pass.dtype});
  }
  const int64_t q_width = int64_t{model.num_heads} * model.head_dim;
  kernels::RmsNormParams norm = {.x = pass.activations->wide(),
                                 .weight = q_weight,
                                 .y = pass.activations->wide(),
                                 .rows = pass.batch->num_rows,
                                 .width = q_width,
                                 .x_stride = QkvStride(model),
                                 .y_stride = QkvStride(model),
                                 .epsilon = model.norm_eps,
                                 .weight_offset = model.norm_weight_offset,
                                 .dtype = pass.dtype};
  PAGODA_RETURN_IF_ERROR(pass.backend->RmsNorm(norm));
  norm.y = static_cast<char*>(pass.activations->wide()) +
           static_cast<size_t>(q_width) * DTypeBytes(pass.dtype);
  norm.x = norm.y;
  norm.weight = k_weight;
  norm.width = int64_t{model.num_kv_heads} * model.head_dim;
  return pass.backend->RmsNorm(norm);
}

// wide = qkv of norm(hidden), rotated, and the keys and values in the cache.
absl::Status QkvToCache(const ForwardPass& pass, int32_t layer) {
  const ModelConfig& model = *pass.model;
  const Activations& act = *pass.activations;
  const RopeTable& table = pass.positions->rope_of(model, layer);
  const kernels::RopeKvWriteParams rope = {.qkv = act.wide(),
                                           .qkv_stride = QkvStride(model),
                                           .cos_sin = table.buffer.as<float>(),
                                           .max_positions = table.num_positions,
                                           .rotary_dim = table.dim,
                                           .num_q_heads = model.num_heads,
                                           .batch = pass.batch,
                                           .cache = pass.kv->layer(layer),
                                           .dtype = pass.dtype};
  const Product product = {
      .x = act.hidden(), .weight = WeightRole::kQkv, .bias = WeightRole::kQkvBias, .y = act.wide()};
  kernels::FusedLinearParams fused = {.linear = MakeLinear(pass, layer, product)};
  // Norms of q and k come between, and a fused op rotates.
  if (!pass.weights->Has(WeightRole::kQNorm, layer) && table.dim > 0) fused.rope = &rope;
  PAGODA_ASSIGN_OR_RETURN(const bool is_done, TryFused(pass, layer, kAttentionNorm, fused));
  if (is_done && fused.rope != nullptr) return absl::OkStatus();
  if (!is_done) PAGODA_RETURN_IF_ERROR(pass.backend->Linear(fused.linear));
  PAGODA_RETURN_IF_ERROR(NormaliseQk(pass, layer));
  return pass.backend->RopeKvWrite(rope);
}

// inner = attention of the q in wide over the cache.
absl::Status Attend(const ForwardPass& pass, int32_t layer) {
  const ModelConfig& model = *pass.model;
  const Activations& act = *pass.activations;
  return pass.backend->PagedAttention({.q = act.wide(),
                                       .q_stride = QkvStride(model),
                                       .out = act.inner(),
                                       .num_q_heads = model.num_heads,
                                       .batch = pass.batch,
                                       .cache = pass.kv->layer(layer),
                                       .scale = model.attention_scale.value_or(
                                           1.0f / std::sqrt(static_cast<float>(model.head_dim))),
                                       .window = model.HasWindow(layer) ? *model.sliding_window : 0,
                                       .soft_cap = model.attention_soft_cap,
                                       .alibi_slopes = pass.positions->alibi_slopes.as<float>(),
                                       .dtype = pass.dtype});
}

// The activation of what is in wide, to inner.
absl::Status Activate(const ForwardPass& pass, int64_t rows, int64_t width, bool gated) {
  const Activations& act = *pass.activations;
  if (gated && pass.model->activation == kernels::Activation::kSilu) {
    return pass.backend->SiluMul({.gate_up = act.wide(),
                                  .y = act.inner(),
                                  .rows = rows,
                                  .width = width,
                                  .dtype = pass.dtype});
  }
  return pass.backend->Activate({.x = act.wide(),
                                 .y = act.inner(),
                                 .rows = rows,
                                 .width = width,
                                 .gated = gated,
                                 .activation = pass.model->activation,
                                 .dtype = pass.dtype});
}

absl::Status MlpBlock(const ForwardPass& pass, int32_t layer, bool gated) {
  const Activations& act = *pass.activations;
  const bool silu_mul = gated && pass.model->activation == kernels::Activation::kSilu;
  kernels::FusedLinearParams fused = {
      .linear = MakeLinear(pass,
                           layer,
                           {.x = act.hidden(),
                            .weight = WeightRole::kGateUp,
                            .bias = WeightRole::kGateUpBias,
                            .y = silu_mul ? act.inner() : act.wide()}),
      .silu_mul = silu_mul};
  if (silu_mul) fused.linear.y_stride = pass.model->intermediate_size;
  PAGODA_ASSIGN_OR_RETURN(const bool is_done, TryFused(pass, layer, kMlpNorm, fused));
  if (!is_done) {
    fused.linear.y = act.wide();
    fused.linear.y_stride = fused.linear.weight.n;
    PAGODA_RETURN_IF_ERROR(pass.backend->Linear(fused.linear));
  }
  if (!is_done || !silu_mul) {
    PAGODA_RETURN_IF_ERROR(
        Activate(pass, pass.batch->num_rows, pass.model->intermediate_size, gated));
  }
  return AddToResidual(
      pass,
      layer,
      {.x = act.inner(), .weight = WeightRole::kDown, .bias = WeightRole::kDownBias},
      {.out_norm = WeightRole::kMlpOutNorm, .next = NextLayerNorm(layer)});
}

// hidden = the rows of the embedding that this rank has, and zeros for tokens of others; then their
// sum over the ranks.
absl::Status EmbedTokensOfRanks(const ForwardPass& pass, kernels::EmbeddingParams params) {
  params.first_id = pass.ranks->first_id;
  params.is_part = true;
  PAGODA_RETURN_IF_ERROR(pass.backend->Embedding(params));
  return SumOverRanks(pass, params.y);
}

// logits = every rank's part, side by side.
absl::Status GatherLogits(const ForwardPass& pass, int64_t num_rows) {
  const Activations& act = *pass.activations;
  constexpr int64_t kBytes = sizeof(float);
  return pass.ranks->group->AllGather({.x = act.rank_logits(),
                                       .y = act.logits(),
                                       .rows = num_rows,
                                       .row_bytes = pass.ranks->num_ids * kBytes,
                                       .y_row_bytes = pass.model->vocab_size * kBytes,
                                       .y_stride_bytes = act.plan().logits_stride * kBytes});
}

}  // namespace

absl::Status EmbedTokens(const ForwardPass& pass) {
  const Activations& act = *pass.activations;
  kernels::EmbeddingParams params = {.tokens = pass.tokens,
                                     .table = pass.weights->matrix(WeightRole::kEmbedding),
                                     .y = act.hidden(),
                                     .rows = pass.batch->num_rows,
                                     .scale = pass.model->embedding_scale,
                                     .y_dtype = pass.dtype};
  PAGODA_RETURN_IF_ERROR(pass.ranks == nullptr ? pass.backend->Embedding(params)
                                               : EmbedTokensOfRanks(pass, params));
  if (pass.weights->Has(WeightRole::kPositionEmbedding)) {
    params.tokens = pass.batch->positions;
    params.table = pass.weights->matrix(WeightRole::kPositionEmbedding);
    params.scale = 1.0f;
    PAGODA_RETURN_IF_ERROR(pass.backend->AddEmbedding(params));
  }
  if (!pass.weights->Has(WeightRole::kEmbeddingNorm)) return absl::OkStatus();
  return Normalise(
      pass, kNoLayer, kEmbeddingNorm, act.hidden(), act.hidden(), pass.batch->num_rows);
}

absl::Status AttentionBlock(const ForwardPass& pass, int32_t layer) {
  PAGODA_RETURN_IF_ERROR(QkvToCache(pass, layer));
  PAGODA_RETURN_IF_ERROR(Attend(pass, layer));
  return AddToResidual(
      pass,
      layer,
      {.x = pass.activations->inner(),
       .weight = WeightRole::kAttentionOut,
       .bias = WeightRole::kAttentionOutBias},
      {.out_norm = WeightRole::kAttentionOutNorm, .next = {.layer = layer, .roles = kMlpNorm}});
}

absl::Status GatedMlpBlock(const ForwardPass& pass, int32_t layer) {
  return MlpBlock(pass, layer, /*gated=*/true);
}

absl::Status PlainMlpBlock(const ForwardPass& pass, int32_t layer) {
  return MlpBlock(pass, layer, /*gated=*/false);
}

absl::Status ExpertsBlock(const ForwardPass& pass, int32_t layer) {
  const Activations& act = *pass.activations;
  const ExpertConfig& experts = *pass.model->experts;
  const int64_t rows = pass.batch->num_rows, hidden = pass.model->hidden_size;
  const int64_t num_entries = rows * experts.experts_per_token;
  const kernels::ExpertRouting& routing = act.routing();
  PAGODA_ASSIGN_OR_RETURN(const void* const x, BlockInput(pass, layer, kMlpNorm));
  PAGODA_RETURN_IF_ERROR(
      pass.backend->Linear({.x = x,
                            .weight = pass.weights->matrix(WeightRole::kRouter, layer),
                            .y = act.router_logits(),
                            .m = rows,
                            .x_stride = hidden,
                            .y_stride = experts.num_experts,
                            .x_dtype = pass.dtype,
                            .y_dtype = DType::kFloat32,
                            // All ranks must choose the same experts.
                            .is_fixed = pass.ranks != nullptr}));
  PAGODA_RETURN_IF_ERROR(pass.backend->RouteExperts({.logits = act.router_logits(),
                                                     .rows = rows,
                                                     .num_experts = experts.num_experts,
                                                     .top_k = experts.experts_per_token,
                                                     .normalise = experts.normalise,
                                                     .routing = routing}));
  PAGODA_RETURN_IF_ERROR(
      pass.backend->GroupedLinear({.x = x,
                                   .entry_rows = routing.entry_rows,
                                   .group_offsets = routing.group_offsets,
                                   .weight = pass.weights->matrix(WeightRole::kExpertGateUp, layer),
                                   .num_groups = experts.num_experts,
                                   .y = act.wide(),
                                   .num_entries = num_entries,
                                   .x_stride = hidden,
                                   .dtype = pass.dtype}));
  PAGODA_RETURN_IF_ERROR(Activate(pass, num_entries, experts.intermediate_size, /*gated=*/true));
  PAGODA_RETURN_IF_ERROR(
      pass.backend->GroupedLinear({.x = act.inner(),
                                   .group_offsets = routing.group_offsets,
                                   .weight = pass.weights->matrix(WeightRole::kExpertDown, layer),
                                   .num_groups = experts.num_experts,
                                   .y = act.wide(),
                                   .num_entries = num_entries,
                                   .x_stride = experts.intermediate_size,
                                   .dtype = pass.dtype}));
  const PartPlace place = PlaceOfPart(pass, NextLayerNorm(layer));
  PAGODA_RETURN_IF_ERROR(pass.backend->CombineExperts({.x = act.wide(),
                                                       .row_entries = routing.row_entries,
                                                       .row_weights = routing.row_weights,
                                                       .y = place.y,
                                                       .rows = rows,
                                                       .width = hidden,
                                                       .top_k = experts.experts_per_token,
                                                       .dtype = pass.dtype,
                                                       .adds = place.adds}));
  return AddParts(pass, NextLayerNorm(layer));
}

absl::Status ComputeLogits(const ForwardPass& pass, const int32_t* row_indices, int64_t num_rows) {
  const ModelConfig& model = *pass.model;
  const Activations& act = *pass.activations;
  const int64_t width = model.hidden_size;
  PAGODA_RETURN_IF_ERROR(pass.backend->GatherRows({.x = act.hidden(),
                                                   .indices = row_indices,
                                                   .y = act.logit_hidden(),
                                                   .rows = num_rows,
                                                   .width = width,
                                                   .dtype = pass.dtype}));
  const WeightRole head =
      pass.weights->Has(WeightRole::kLmHead) ? WeightRole::kLmHead : WeightRole::kEmbedding;
  kernels::FusedLinearParams fused = {.linear = {.x = act.logit_hidden(),
                                                 .weight = pass.weights->matrix(head),
                                                 .y = act.logits(),
                                                 .m = num_rows,
                                                 .x_stride = width,
                                                 .y_stride = act.plan().logits_stride,
                                                 .x_dtype = pass.dtype,
                                                 .y_dtype = DType::kFloat32},
                                      .norm = {.weight = pass.weights->vector(kFinalNorm.weight),
                                               .epsilon = model.norm_eps,
                                               .weight_offset = model.norm_weight_offset}};
  if (pass.ranks != nullptr) {
    fused.linear.y = act.rank_logits();
    fused.linear.y_stride = pass.ranks->num_ids;
  }
  if (model.norm == NormKind::kRms && pass.backend->SupportsFusedLinear(fused)) {
    PAGODA_RETURN_IF_ERROR(pass.backend->FusedLinear(fused));
  } else {
    PAGODA_RETURN_IF_ERROR(
        Normalise(pass, kNoLayer, kFinalNorm, act.logit_hidden(), act.logit_hidden(), num_rows));
    PAGODA_RETURN_IF_ERROR(pass.backend->Linear(fused.linear));
  }
  if (pass.ranks != nullptr) PAGODA_RETURN_IF_ERROR(GatherLogits(pass, num_rows));
  if (model.logit_scale == 1.0f && model.logit_soft_cap == 0.0f) return absl::OkStatus();
  return pass.backend->AdjustLogits({.logits = act.logits(),
                                     .rows = num_rows,
                                     .width = model.vocab_size,
                                     .stride = act.plan().logits_stride,
                                     .scale = model.logit_scale,
                                     .soft_cap = model.logit_soft_cap});
}

absl::Status RunGatedLayers(const ForwardPass& pass) {
  PAGODA_RETURN_IF_ERROR(EmbedTokens(pass));
  for (int32_t layer = 0; layer < pass.model->num_layers; ++layer) {
    PAGODA_RETURN_IF_ERROR(AttentionBlock(pass, layer));
    PAGODA_RETURN_IF_ERROR(GatedMlpBlock(pass, layer));
  }
  return absl::OkStatus();
}

absl::Status RunPlainLayers(const ForwardPass& pass) {
  PAGODA_RETURN_IF_ERROR(EmbedTokens(pass));
  for (int32_t layer = 0; layer < pass.model->num_layers; ++layer) {
    PAGODA_RETURN_IF_ERROR(AttentionBlock(pass, layer));
    PAGODA_RETURN_IF_ERROR(PlainMlpBlock(pass, layer));
  }
  return absl::OkStatus();
}

absl::Status RunExpertLayers(const ForwardPass& pass) {
  PAGODA_RETURN_IF_ERROR(EmbedTokens(pass));
  for (int32_t layer = 0; layer < pass.model->num_layers; ++layer) {
    PAGODA_RETURN_IF_ERROR(AttentionBlock(pass, layer));
    PAGODA_RETURN_IF_ERROR(pass.model->HasExperts(layer) ? ExpertsBlock(pass, layer)
                                                         : GatedMlpBlock(pass, layer));
  }
  return absl::OkStatus();
}

}  // namespace pagoda::engine
