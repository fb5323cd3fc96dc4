#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/forward_pass.h"

namespace pagoda::engine {

// The steps that blocks are made of; for forward_pass.cc and its like.

// y = weight * x + bias (+ y, when `adds`): activations in, activations out, rows without gaps.
struct Product {
  const void* x = nullptr;
  WeightRole weight = WeightRole::kQkv;
  WeightRole bias = WeightRole::kQkvBias;
  void* y = nullptr;
  bool adds = false;
};

kernels::LinearParams MakeLinear(const ForwardPass& pass, int32_t layer, const Product& product);
absl::Status Multiply(const ForwardPass& pass, int32_t layer, const Product& product);

struct NormRoles {
  WeightRole weight = WeightRole::kInputNorm;
  WeightRole bias = WeightRole::kInputNormBias;
};

// y = norm(x), of `rows` rows of the hidden size; y may be x. REQUIRES: the model has that norm.
absl::Status Normalise(const ForwardPass& pass,
                       int32_t layer,
                       const NormRoles& roles,
                       const void* x,
                       void* y,
                       int64_t rows);

// The norm that a block of `layer` begins with.
struct BlockNorm {
  int32_t layer = kNoLayer;
  NormRoles roles;
};

// Whether ranks compute the norm together with the sum that ends the block before it: it is in
// activations->normed() when its block begins.
bool ComesWithSum(const ForwardPass& pass, const BlockNorm& norm);

// What a block reads: the residual stream's norm, in activations->normed(), or the stream itself in
// models without that norm.
absl::StatusOr<const void*> BlockInput(const ForwardPass& pass,
                                       int32_t layer,
                                       const NormRoles& roles);

// Runs a product of the residual stream through the norm `roles`, and what `fused` has around it,
// in one op of the backend, or with the norm as an op before it. False: no op does it; the norm was
// done, and fused.linear.x is what the product reads.
absl::StatusOr<bool> TryFused(const ForwardPass& pass,
                              int32_t layer,
                              const NormRoles& roles,
                              kernels::FusedLinearParams& fused);

// Where a block ends.
struct BlockEnd {
  // Of what the block gives, where the model has it.
  WeightRole out_norm = WeightRole::kAttentionOutNorm;
  // What the next block begins with.
  BlockNorm next;
};

// hidden += product, through the norm `out_norm` where the model has one and times residual_scale.
// The product's y is chosen here; activations->normed() is overwritten.
absl::Status AddToResidual(const ForwardPass& pass,
                           int32_t layer,
                           Product product,
                           const BlockEnd& end);

// Of those that share the model, the one that counts what all of them have.
inline bool IsFirstRank(const ForwardPass& pass) {
  return pass.ranks == nullptr || pass.ranks->group->rank() == 0;
}

// rows ([batch->num_rows, hidden_size]) = their sum over the ranks.
absl::Status SumOverRanks(const ForwardPass& pass, void* rows);

// Where a rank's part of what a block adds to the residual stream goes, and whether it is added to
// what is there.
struct PartPlace {
  void* y = nullptr;
  bool adds = false;
};
PartPlace PlaceOfPart(const ForwardPass& pass, const BlockNorm& next);
// hidden += the sum of the ranks' parts, which are there; and its norm, if that comes with it.
absl::Status AddParts(const ForwardPass& pass, const BlockNorm& next);

}  // namespace pagoda::engine
