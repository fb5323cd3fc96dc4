// Philox-4x32 (kernels/ops/philox.h), sixteen blocks at a time.
#pragma once

#include "kernels/cpu/simd.h"

namespace pagoda::kernels::cpu {
namespace {

struct PhiloxVec {
  VecU word[4];
};

// High and low halves of the 64-bit products of the lanes with `m`.
PAGODA_INLINE void MultiplyWide(VecU a, uint32_t m, VecU* high, VecU* low) {
#if defined(__AVX512F__)
  const __m512i factor = _mm512_set1_epi64(m);
  const __m512i even = _mm512_mul_epu32((__m512i)a, factor);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), factor);
  *low = (VecU)_mm512_mask_mov_epi32(even, 0xaaaa, _mm512_slli_epi64(odd, 32));
  *high = (VecU)_mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xaaaa, odd);
#elif defined(__AVX2__)
  const __m256i factor = _mm256_set1_epi64x(m);
  const auto multiply = [&](VecU::Half half, VecU::Half* high_half, VecU::Half* low_half) {
    const __m256i even = _mm256_mul_epu32((__m256i)half, factor);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)half, 32), factor);
    *low_half = (VecU::Half)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *high_half = (VecU::Half)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  };
  multiply(a.lo, &high->lo, &low->lo);
  multiply(a.hi, &high->hi, &low->hi);
#else
  const VecQ both = (VecQ)a;
  const VecQ even = (both & 0xffffffffu) * uint64_t{m};
  const VecQ odd = (both >> 32) * uint64_t{m};
  *low = (VecU)((even & 0xffffffffu) | (odd << 32));
  *high = (VecU)((even >> 32) | (odd & 0xffffffff00000000u));
#endif
}

// Lane i: the block of counter (counter_lo[i], counter_hi[i]) in 32-bit words c0 .. c3.
template <int kRounds = 10>
PAGODA_INLINE PhiloxVec Philox(uint64_t key, VecU c0, VecU c1, VecU c2, VecU c3) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    VecU high0, low0, high1, low1;
    MultiplyWide(c0, 0xD2511F53u, &high0, &low0);
    MultiplyWide(c2, 0xCD9E8D57u, &high1, &low1);
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

PAGODA_INLINE VecF Uniform(VecU bits) { return (ToFloat(bits >> 9) + 0.5f) * 0x1p-23f; }

}  // namespace
}  // namespace pagoda::kernels::cpu
