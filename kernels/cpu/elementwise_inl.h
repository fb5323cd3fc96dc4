#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/ops/philox.h"

namespace pagoda::kernels::cpu {
namespace {

void RmsNormRow(const float* x,
                const float* weight,
                float weight_offset,
                float epsilon,
                int64_t width,
                float* y) {
  VecF sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
    for (int u = 0; u < 4; ++u) {
      const VecF v = Load(x + i + u * kLanes);
      sums[u] = Fma(v, v, sums[u]);
    }
  }
  for (; i < width; i += kLanes) {
    const VecF v = LoadPartial(x + i, width - i);
    sums[0] = Fma(v, v, sums[0]);
  }
  const float mean =
      ReduceAdd((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<float>(width);
  const VecF factor = Set1(1.0f / __builtin_sqrtf(mean + epsilon));
  const VecF offset = Set1(weight_offset);
  for (i = 0; i < width; i += kLanes) {
    const int64_t count = width - i;
    StorePartial(LoadPartial(x + i, count) * factor * (LoadPartial(weight + i, count) + offset),
                 y + i,
                 count);
  }
}

void SiluMulRow(const float* gate, const float* up, int64_t width, float* y) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t count = width - i;
    StorePartial(Silu(LoadPartial(gate + i, count)) * LoadPartial(up + i, count), y + i, count);
  }
}

void RotateHead(float* head, const float* cos, const float* sin, int32_t rotary_dim) {
  const int32_t half = rotary_dim / 2;
  for (int32_t i = 0; i < half; i += kLanes) {
    const int32_t count = half - i;
    const VecF a = LoadPartial(head + i, count);
    const VecF b = LoadPartial(head + half + i, count);
    const VecF c = LoadPartial(cos + i, count);
    const VecF s = LoadPartial(sin + i, count);
    StorePartial(a * c - b * s, head + i, count);
    StorePartial(b * c + a * s, head + half + i, count);
  }
}

void StoreKv(const float* source, float inverse_scale, int64_t count, Element element, void* out) {
  if (element == Element::kFloat32) {
    for (int64_t i = 0; i < count; ++i) static_cast<float*>(out)[i] = source[i] * inverse_scale;
  } else {
    for (int64_t i = 0; i < count; ++i)
      static_cast<uint16_t*>(out)[i] = ToBf16(source[i] * inverse_scale);
  }
}

}  // namespace
}  // namespace pagoda::kernels::cpu
