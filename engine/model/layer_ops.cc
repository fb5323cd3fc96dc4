#include "engine/model/layer_ops.h"

#include "kernels/base/status_macros.h"

namespace pagoda::engine {

kernels::LinearParams MakeLinear(const ForwardPass& pass, int32_t layer, const Product& product) {
  const kernels::LinearWeight& weight = pass.weights->matrix(product.weight, layer);
  return {.x = product.x,
          .weight = weight,
          .bias = pass.weights->vector(product.bias, layer),
          .residual = product.adds ? product.y : nullptr,
          .y = product.y,
          .m = pass.batch->num_rows,
          .x_stride = weight.k,
          .y_stride = weight.n,
          .x_dtype = pass.dtype,
          .y_dtype = pass.dtype};
}

absl::Status Multiply(const ForwardPass& pass, int32_t layer, const Product& product) {
  return pass.backend->Linear(MakeLinear(pass, layer, product));
}

absl::Status Normalise(const ForwardPass& pass,
                       int32_t layer,
                       const NormRoles& roles,
                       const void* x,
                       void* y,
                       int64_t rows) {
  const ModelConfig& model = *pass.model;
  const int64_t width = model.hidden_size;
  const float* const weight = pass.weights->vector(roles.weight, layer);
  if (model.norm == NormKind::kLayer) {
    return pass.backend->LayerNorm({.x = x,
                                    .weight = weight,
                                    .bias = pass.weights->vector(roles.bias, layer),
                                    .y = y,
                                    .rows = rows,
                                    .width = width,
                                    .x_stride = width,
                                    .y_stride = width,
                                    .epsilon = model.norm_eps,
                                    .dtype = pass.dtype});
  }
  return pass.backend->RmsNorm({.x = x,
                                .weight = weight,
                                .y = y,
                                .rows = rows,
                                .width = width,
                                .x_stride = width,
                                .y_stride = width,
                                .epsilon = model.norm_eps,
                                .weight_offset = model.norm_weight_offset,
                                .dtype = pass.dtype});
}

namespace {

// hidden += the sum over the ranks of what is in normed; normed = its norm.
kernels::AllReduceNormParams SumWithNorm(const ForwardPass& pass, const BlockNorm& norm) {
  const Activations& act = *pass.activations;
  return {.x = act.normed(),
          .residual = act.hidden(),
          .sum = act.hidden(),
          .weight = pass.weights->vector(norm.roles.weight, norm.layer),
          .y = act.normed(),
          .rows = pass.batch->num_rows,
          .width = pass.model->hidden_size,
          .epsilon = pass.model->norm_eps,
          .weight_offset = pass.model->norm_weight_offset,
          .dtype = pass.dtype};
}

}  // namespace

bool ComesWithSum(const ForwardPass& pass, const BlockNorm& norm) {
  const ModelConfig& model = *pass.model;
  if (pass.ranks == nullptr || norm.layer >= model.num_layers) return false;
  // The first block follows the embedding.
  const bool is_first = norm.layer == 0 && norm.roles.weight == WeightRole::kInputNorm;
  // A sum that is not all of what is added.
  const bool is_part = model.residual_scale != 1.0f ||
                       pass.weights->Has(WeightRole::kAttentionOutNorm, norm.layer) ||
                       pass.weights->Has(WeightRole::kMlpOutNorm, norm.layer);
  return !is_first && !is_part && model.norm == NormKind::kRms &&
         pass.weights->Has(norm.roles.weight, norm.layer) &&
         pass.ranks->group->SupportsAllReduceNorm(SumWithNorm(pass, norm));
}

absl::StatusOr<const void*> BlockInput(const ForwardPass& pass,
                                       int32_t layer,
                                       const NormRoles& roles) {
  const Activations& act = *pass.activations;
  if (!pass.weights->Has(roles.weight, layer)) return act.hidden();
  if (ComesWithSum(pass, {.layer = layer, .roles = roles})) return act.normed();
  PAGODA_RETURN_IF_ERROR(
      Normalise(pass, layer, roles, act.hidden(), act.normed(), pass.batch->num_rows));
  return act.normed();
}

absl::StatusOr<bool> TryFused(const ForwardPass& pass,
                              int32_t layer,
                              const NormRoles& roles,
                              kernels::FusedLinearParams& fused) {
  const auto run = [&]() -> absl::StatusOr<bool> {
    if (!pass.backend->SupportsFusedLinear(fused)) return false;
    PAGODA_RETURN_IF_ERROR(pass.backend->FusedLinear(fused));
    return true;
  };
  if (pass.weights->Has(roles.weight, layer) && pass.model->norm == NormKind::kRms &&
      !ComesWithSum(pass, {.layer = layer, .roles = roles})) {
    fused.norm = {.weight = pass.weights->vector(roles.weight, layer),
                  .epsilon = pass.model->norm_eps,
                  .weight_offset = pass.model->norm_weight_offset};
    PAGODA_ASSIGN_OR_RETURN(const bool is_done, run());
    if (is_done) return true;
    fused.norm = {};
  }
  PAGODA_ASSIGN_OR_RETURN(fused.linear.x, BlockInput(pass, layer, roles));
  // Without anything around it, it is a plain product.
  if (!fused.silu_mul && fused.rope == nullptr) return false;
  return run();
}

absl::Status SumOverRanks(const ForwardPass& pass, void* rows) {
  if (pass.ranks == nullptr) return absl::OkStatus();
  return pass.ranks->group->AllReduceSum(
      {.x = rows,
       .y = rows,
       .count = pass.batch->num_rows * int64_t{pass.model->hidden_size},
       .dtype = pass.dtype});
}

PartPlace PlaceOfPart(const ForwardPass& pass, const BlockNorm& next) {
  if (ComesWithSum(pass, next)) return {.y = pass.activations->normed()};
  // The residual stream goes into the sum over the ranks once.
  return {.y = pass.activations->hidden(), .adds = IsFirstRank(pass)};
}

absl::Status AddParts(const ForwardPass& pass, const BlockNorm& next) {
  if (!ComesWithSum(pass, next)) return SumOverRanks(pass, pass.activations->hidden());
  return pass.ranks->group->AllReduceNorm(SumWithNorm(pass, next));
}

absl::Status AddToResidual(const ForwardPass& pass,
                           int32_t layer,
                           Product product,
                           const BlockEnd& end) {
  const Activations& act = *pass.activations;
  const bool has_norm = pass.weights->Has(end.out_norm, layer);
  const float scale = pass.model->residual_scale;
  if (!has_norm && scale == 1.0f) {
    const PartPlace place = PlaceOfPart(pass, end.next);
    product.y = place.y;
    product.adds = place.adds;
    PAGODA_RETURN_IF_ERROR(Multiply(pass, layer, product));
    return AddParts(pass, end.next);
  }
  product.y = act.normed();
  PAGODA_RETURN_IF_ERROR(Multiply(pass, layer, product));
  PAGODA_RETURN_IF_ERROR(SumOverRanks(pass, act.normed()));
  if (has_norm) {
    // Norms of this kind have no bias.
    const NormRoles roles = {.weight = end.out_norm, .bias = end.out_norm};
    PAGODA_RETURN_IF_ERROR(
        Normalise(pass, layer, roles, act.normed(), act.normed(), pass.batch->num_rows));
  }
  return pass.backend->AddScaled({.x = act.normed(),
                                  .y = act.hidden(),
                                  .count = pass.batch->num_rows * int64_t{pass.model->hidden_size},
                                  .scale = scale,
                                  .dtype = pass.dtype});
}

}  // namespace pagoda::engine
