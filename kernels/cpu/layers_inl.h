// Rows of the ops that not every architecture has: layer norm, activations, soft caps.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/ops/activation_kind.h"

namespace pagoda::kernels::cpu {
namespace {

// Mean first, then squares of what is left of it: no cancellation.
void LayerNormRow(const float* x,
                  const float* weight,
                  const float* bias,
                  float epsilon,
                  int64_t width,
                  float* y) {
  VecF sums = Zero();
  for (int64_t i = 0; i < width; i += kLanes) sums = sums + LoadPartial(x + i, width - i);
  const float mean = ReduceAdd(sums) / static_cast<float>(width);
  VecF squares = Zero();
  for (int64_t i = 0; i < width; i += kLanes) {
    // Lanes past the end hold the mean, so that they add nothing.
    const VecF v = LoadPartial(x + i, width - i, mean) - Set1(mean);
    squares = Fma(v, v, squares);
  }
  const float variance = ReduceAdd(squares) / static_cast<float>(width);
  const VecF factor = Set1(1.0f / __builtin_sqrtf(variance + epsilon));
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t count = width - i;
    VecF v = (LoadPartial(x + i, count) - Set1(mean)) * factor * LoadPartial(weight + i, count);
    if (bias != nullptr) v = v + LoadPartial(bias + i, count);
    StorePartial(v, y + i, count);
  }
}

// Abramowitz and Stegun 7.1.26 is too coarse for float32; this is the rational approximation of erf
// on [-4, 4] (beyond it is 1 to the last bit), as Eigen and XLA have it: 4 units in the last place.
PAGODA_INLINE VecF Erf(VecF x) {
  x = Max(Set1(-4.0f), Min(Set1(4.0f), x));
  const VecF z = x * x;
  VecF p = Set1(-2.72614225801306e-10f);
  p = Fma(p, z, Set1(2.77068142495902e-08f));
  p = Fma(p, z, Set1(-2.10102402082508e-06f));
  p = Fma(p, z, Set1(-5.69250639462346e-05f));
  p = Fma(p, z, Set1(-7.34990630326855e-04f));
  p = Fma(p, z, Set1(-2.95459980854025e-03f));
  p = Fma(p, z, Set1(-1.60960333262415e-02f));
  VecF q = Set1(-1.45660718464996e-05f);
  q = Fma(q, z, Set1(-2.13374055278905e-04f));
  q = Fma(q, z, Set1(-1.68282697438203e-03f));
  q = Fma(q, z, Set1(-7.37332916720468e-03f));
  q = Fma(q, z, Set1(-1.42647390514189e-02f));
  return x * p / q;
}

PAGODA_INLINE VecF Gelu(VecF x) {
  return Set1(0.5f) * x * (Set1(1.0f) + Erf(x * Set1(0.70710678f)));
}

PAGODA_INLINE VecF GeluTanh(VecF x) {
  const VecF inner = Set1(0.79788456f) * Fma(Set1(0.044715f) * x * x, x, x);
  return Set1(0.5f) * x * (Set1(1.0f) + Tanh(inner));
}

template <typename F>
PAGODA_INLINE void ActivateWith(F f, const float* x, const float* up, int64_t width, float* y) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t count = width - i;
    VecF v = f(LoadPartial(x + i, count));
    if (up != nullptr) v = v * LoadPartial(up + i, count);
    StorePartial(v, y + i, count);
  }
}

void ActivateRow(const float* x, const float* up, Activation activation, int64_t width, float* y) {
  switch (activation) {
    case Activation::kSilu:
      return ActivateWith([](VecF v) { return Silu(v); }, x, up, width, y);
    case Activation::kGelu:
      return ActivateWith([](VecF v) { return Gelu(v); }, x, up, width, y);
    case Activation::kGeluTanh:
      return ActivateWith([](VecF v) { return GeluTanh(v); }, x, up, width, y);
  }
}

void AddScaledRow(const float* x, float scale, int64_t width, float* y) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t count = width - i;
    StorePartial(
        Fma(Set1(scale), LoadPartial(x + i, count), LoadPartial(y + i, count)), y + i, count);
  }
}

void AdjustLogitsRow(float scale, float soft_cap, int64_t width, float* logits) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t count = width - i;
    VecF v = LoadPartial(logits + i, count) * Set1(scale);
    if (soft_cap > 0.0f) v = Set1(soft_cap) * Tanh(v / Set1(soft_cap));
    StorePartial(v, logits + i, count);
  }
}

}  // namespace
}  // namespace pagoda::kernels::cpu
