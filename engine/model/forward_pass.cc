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

absl::Status Multiply(const ForwardPass& pass, int32_t layer, const Product& product) {
  const LinearWeight& weight = pass.weights->matrix(product.weight, layer);
  return pass.backend->Linear({.x = product.x,
                               .weight = weight,
                               .bias = pass.weights->vector(product.bias, layer),
                               .residual = product.adds ? product.y : nullptr,
                               .y = product.y,
                               .m = pass.batch->num_rows,
                               .x_stride = weight.k,
                               .y_stride = weight.n,
                               .x_dtype = pass.dtype,
                               .y_dtype = pass.dtype});
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
  PAGODA_RETURN_IF_ERROR(Normalise(pass,
                                   pass.weights->vector(WeightRole::kInputNorm, layer),
                                   act.hidden(),
                                   act.normed(),
                                   pass.batch->num_rows));
  PAGODA_RETURN_IF_ERROR(Multiply(pass,
                                  layer,
                                  {.x = act.normed(),
                                   .weight = WeightRole::kQkv,
                                   .bias = WeightRole::kQkvBias,
                                   .y = act.wide()}));
  const int64_t qkv_stride = int64_t{model.num_heads + 2 * model.num_kv_heads} * model.head_dim;
  const kernels::KvCacheView cache = pass.kv->layer(layer);
  PAGODA_RETURN_IF_ERROR(pass.backend->RopeKvWrite({.qkv = act.wide(),
                                                    .qkv_stride = qkv_stride,
                                                    .cos_sin = pass.rope->buffer.as<float>(),
                                                    .max_positions = pass.rope->num_positions,
                                                    .rotary_dim = pass.rope->dim,
                                                    .num_q_heads = model.num_heads,
                                                    .batch = pass.batch,
                                                    .cache = cache,
                                                    .dtype = pass.dtype}));
  PAGODA_RETURN_IF_ERROR(
      pass.backend->PagedAttention({.q = act.wide(),
                                    .q_stride = qkv_stride,
                                    .out = act.inner(),
                                    .num_q_heads = model.num_heads,
                                    .batch = pass.batch,
                                    .cache = cache,
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
  PAGODA_RETURN_IF_ERROR(Normalise(pass,
                                   pass.weights->vector(WeightRole::kPostAttentionNorm, layer),
                                   act.hidden(),
                                   act.normed(),
                                   pass.batch->num_rows));
  PAGODA_RETURN_IF_ERROR(Multiply(pass,
                                  layer,
                                  {.x = act.normed(),
                                   .weight = WeightRole::kGateUp,
                                   .bias = WeightRole::kGateUpBias,
                                   .y = act.wide()}));
  PAGODA_RETURN_IF_ERROR(pass.backend->SiluMul({.gate_up = act.wide(),
                                                .y = act.inner(),
                                                .rows = pass.batch->num_rows,
                                                .width = pass.model->intermediate_size,
                                                .dtype = pass.dtype}));
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
  PAGODA_RETURN_IF_ERROR(Normalise(pass,
                                   pass.weights->vector(WeightRole::kFinalNorm),
                                   act.logit_hidden(),
                                   act.logit_hidden(),
                                   num_rows));
  const WeightRole head =
      pass.weights->Has(WeightRole::kLmHead) ? WeightRole::kLmHead : WeightRole::kEmbedding;
  return pass.backend->Linear({.x = act.logit_hidden(),
                               .weight = pass.weights->matrix(head),
                               .y = act.logits(),
                               .m = num_rows,
                               .x_stride = width,
                               .y_stride = act.plan().logits_stride,
                               .x_dtype = pass.dtype,
                               .y_dtype = DType::kFloat32});
}

}  // namespace pagoda::engine
