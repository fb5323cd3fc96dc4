#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/philox_inl.h"
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

// Sixty-four elements a step: lane i holds block `first_block + i`, whose words 0, 1 and 2, 3 make
// two normals each.
void NormalBlocks(uint64_t seed, uint64_t first_block, float* out) {
  uint32_t lo[kLanes], hi[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    lo[i] = static_cast<uint32_t>(first_block + i);
    hi[i] = static_cast<uint32_t>((first_block + i) >> 32);
  }
  const PhiloxVec r = Philox(seed,
                             LoadAs<VecU>(lo),
                             LoadAs<VecU>(hi),
                             Set1U(static_cast<uint32_t>(kNormalStream)),
                             Set1U(static_cast<uint32_t>(kNormalStream >> 32)));
  for (int pair = 0; pair < 4; pair += 2) {
    const VecF squared = Set1(-2.0f) * Log(Uniform(r.word[pair]));
    VecF cos, sin;
    CosSinTurns(Uniform(r.word[pair + 1]), &cos, &sin);
    for (int i = 0; i < kLanes; ++i) {
      const float radius = __builtin_sqrtf(squared[i]);
      out[4 * i + pair] = radius * cos[i];
      out[4 * i + pair + 1] = radius * sin[i];
    }
  }
}

void FillNormal(uint64_t seed, uint64_t first_index, int64_t count, float stddev, float* out) {
  constexpr int64_t kStep = 4 * kLanes;
  float normals[kStep];
  int64_t i = 0;
  while (i < count) {
    const uint64_t index = first_index + static_cast<uint64_t>(i);
    NormalBlocks(seed, index / 4, normals);
    for (int64_t j = static_cast<int64_t>(index % 4); j < kStep && i < count; ++j, ++i)
      out[i] = stddev * normals[j];
  }
}

}  // namespace
}  // namespace pagoda::kernels::cpu
