#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/ops/philox.h"

namespace pagoda::kernels {

// Element `index` of the stream N(0, 1) of `seed`: Box-Muller over Philox-4x32-10 with key = seed
// and counter = (index / 4, kNormalStream). Words 0 and 1 give elements 0 (cosine) and 1 (sine) of
// the block, words 2 and 3 elements 2 and 3. Backends agree up to the rounding of log, cos and sin.
PAGODA_HOST_DEVICE inline float NormalFromPhilox(uint64_t seed, uint64_t index) {
  const PhiloxBlock block = Philox4x32(seed, index / 4, kNormalStream);
  const int pair = static_cast<int>(index % 4) / 2 * 2;
  const float radius = sqrtf(-2.0f * logf(UniformFromBits(block.word[pair])));
  const float angle = 6.2831853f * UniformFromBits(block.word[pair + 1]);
  return radius * (index % 2 == 0 ? cosf(angle) : sinf(angle));
}

}  // namespace pagoda::kernels
