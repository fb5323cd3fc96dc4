#include "engine/model/forward_pass.h"

#include <cmath>

#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

using kernels::LinearWeight;

// y = weight * x + bias (+ y, when `adds`): activations in, activations out, rows without gaps.
struct Product {
  const void* x = nullptr;
  WeightRole weight = WeightRole::kQkv;
  WeightRole bias = WeightRole::kQkvBias;
  void* y = nullptr;
  bool adds = false;
};

kernels::LinearParams MakeLinear(const ForwardPass& pass, int32_t layer, const Product& product) {
  const LinearWeight& weight = pass.weights->matrix(product.weight, layer);
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

absl::Status Normalise(
    const ForwardPass& pass, const float* weight, const void* x, void* y, int64_t rows) {
  const int64_t width = pass.model->hidden_size;
  return pass.backend->RmsNorm({.x = x,
                                .weight = weight,
                                .y = y,
                                .rows = rows,
                                .width = width,
                                .x_stride = width,
                                .y_stride = width,
                                .epsilon = pass.model->rms_norm_eps,
                                .dtype = pass.dtype});
}

kernels::InputNorm NormOf(const ForwardPass& pass, const float* weight) {
  return {.weight = weight, .epsilon = pass.model->rms_norm_eps};
}

// Does the norm of a fused product as an op of its own, into normed().
absl::Status NormaliseInput(const ForwardPass& pass, kernels::FusedLinearParams& fused) {
  void* normed = pass.activations->normed();
  PAGODA_RETURN_IF_ERROR(
      Normalise(pass, fused.norm.weight, fused.linear.x, normed, fused.linear.m));
  fused.linear.x = normed;
  fused.norm = {};
  return absl::OkStatus();
}

// wide = qkv of norm(hidden), rotated, and the keys and values in the cache.
absl::Status QkvToCache(const ForwardPass& pass, int32_t layer) {
  const ModelConfig& model = *pass.model;
  const Activations& act = *pass.activations;
  const kernels::RopeKvWriteParams rope = {
      .qkv = act.wide(),
      .qkv_stride = int64_t{model.num_heads + 2 * model.num_kv_heads} * model.head_dim,
      .cos_sin = pass.rope->buffer.as<float>(),
      .max_positions = pass.rope->num_positions,
      .rotary_dim = pass.rope->dim,
      .num_q_heads = model.num_heads,
      .batch = pass.batch,
      .cache = pass.kv->layer(layer),
      .dtype = pass.dtype};
  const float* norm = pass.weights->vector(WeightRole::kInputNorm, layer);
  const Product product = {
      .x = act.hidden(), .weight = WeightRole::kQkv, .bias = WeightRole::kQkvBias, .y = act.wide()};
  kernels::FusedLinearParams fused = {
      .linear = MakeLinear(pass, layer, product), .norm = NormOf(pass, norm), .rope = &rope};
  if (pass.backend->SupportsFusedLinear(fused)) return pass.backend->FusedLinear(fused);

  PAGODA_RETURN_IF_ERROR(NormaliseInput(pass, fused));
  if (pass.backend->SupportsFusedLinear(fused)) return pass.backend->FusedLinear(fused);
  PAGODA_RETURN_IF_ERROR(pass.backend->Linear(fused.linear));
  return pass.backend->RopeKvWrite(rope);
}

// inner = silu(gate) * up of norm(hidden).
absl::Status GateUp(const ForwardPass& pass, int32_t layer) {
  const Activations& act = *pass.activations;
  const float* norm = pass.weights->vector(WeightRole::kPostAttentionNorm, layer);
  Product product = {.x = act.hidden(),
                     .weight = WeightRole::kGateUp,
                     .bias = WeightRole::kGateUpBias,
                     .y = act.inner()};
  kernels::FusedLinearParams fused = {
      .linear = MakeLinear(pass, layer, product), .norm = NormOf(pass, norm), .silu_mul = true};
  fused.linear.y_stride = pass.model->intermediate_size;
  if (pass.backend->SupportsFusedLinear(fused)) return pass.backend->FusedLinear(fused);

  PAGODA_RETURN_IF_ERROR(NormaliseInput(pass, fused));
  if (pass.backend->SupportsFusedLinear(fused)) return pass.backend->FusedLinear(fused);
  product.x = act.normed();
  product.y = act.wide();
  PAGODA_RETURN_IF_ERROR(Multiply(pass, layer, product));
  return pass.backend->SiluMul({.gate_up = act.wide(),
                                .y = act.inner(),
                                .rows = pass.batch->num_rows,
                                .width = pass.model->intermediate_size,
                                .dtype = pass.dtype});
}

}  // namespace

absl::Status EmbedTokens(const ForwardPass& pass) {
  return pass.backend->Embedding({.tokens = pass.tokens,
                                  .table = pass.weights->matrix(WeightRole::kEmbedding),
                                  .y = pass.activations->hidden(),
                                  .rows = pass.batch->num_rows,
                                  .y_dtype = pass.dtype});
}

absl::Status AttentionBlock(const ForwardPass& pass, int32_t layer) {
  const ModelConfig& model = *pass.model;
  const Activations& act = *pass.activations;
  PAGODA_RETURN_IF_ERROR(QkvToCache(pass, layer));
  PAGODA_RETURN_IF_ERROR(pass.backend->PagedAttention(
      {.q = act.wide(),
       .q_stride = int64_t{model.num_heads + 2 * model.num_kv_heads} * model.head_dim,
       .out = act.inner(),
       .num_q_heads = model.num_heads,
       .batch = pass.batch,
       .cache = pass.kv->layer(layer),
       .scale = 1.0f / std::sqrt(static_cast<float>(model.head_dim)),
       .window = model.sliding_window.value_or(0),
       .dtype = pass.dtype}));
  return Multiply(pass,
                  layer,
                  {.x = act.inner(),
                   .weight = WeightRole::kAttentionOut,
                   .bias = WeightRole::kAttentionOutBias,
                   .y = act.hidden(),
                   .adds = true});
}

absl::Status GatedMlpBlock(const ForwardPass& pass, int32_t layer) {
  const Activations& act = *pass.activations;
  PAGODA_RETURN_IF_ERROR(GateUp(pass, layer));
  return Multiply(pass,
                  layer,
                  {.x = act.inner(),
                   .weight = WeightRole::kDown,
                   .bias = WeightRole::kDownBias,
                   .y = act.hidden(),
                   .adds = true});
}

absl::Status ComputeLogits(const ForwardPass& pass, const int32_t* row_indices, int64_t num_rows) {
  const Activations& act = *pass.activations;
  const int64_t width = pass.model->hidden_size;
  PAGODA_RETURN_IF_ERROR(pass.backend->GatherRows({.x = act.hidden(),
                                                   .indices = row_indices,
                                                   .y = act.logit_hidden(),
                                                   .rows = num_rows,
                                                   .width = width,
                                                   .dtype = pass.dtype}));
  const float* norm = pass.weights->vector(WeightRole::kFinalNorm);
  const WeightRole head =
      pass.weights->Has(WeightRole::kLmHead) ? WeightRole::kLmHead : WeightRole::kEmbedding;
  const kernels::LinearParams linear = {.x = act.logit_hidden(),
                                        .weight = pass.weights->matrix(head),
                                        .y = act.logits(),
                                        .m = num_rows,
                                        .x_stride = width,
                                        .y_stride = act.plan().logits_stride,
                                        .x_dtype = pass.dtype,
                                        .y_dtype = DType::kFloat32};
  const kernels::FusedLinearParams fused = {.linear = linear, .norm = NormOf(pass, norm)};
  if (pass.backend->SupportsFusedLinear(fused)) return pass.backend->FusedLinear(fused);
  PAGODA_RETURN_IF_ERROR(Normalise(pass, norm, act.logit_hidden(), act.logit_hidden(), num_rows));
  return pass.backend->Linear(linear);
}

}  // namespace pagoda::engine
