// From rows of the KV cache to the panels that register tiles read. T is the type of the cache:
// float, or uint16_t for bfloat16.
#pragma once

#include "kernels/cpu/simd.h"

namespace pagoda::kernels::cpu {
namespace {

#if defined(__AVX512F__)

// 16 x 16 elements of 32 bits: rows become columns.
PAGODA_INLINE void Transpose16(VecU (&v)[16]) {
  VecU t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = __builtin_shufflevector(
        v[i], v[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    t[i + 1] = __builtin_shufflevector(
        v[i], v[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    for (int h = 0; h < 2; ++h) {
      const VecQ a = (VecQ)t[i + h], b = (VecQ)t[i + h + 2];
      v[i + 2 * h] = (VecU)__builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14);
      v[i + 2 * h + 1] = (VecU)__builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
    }
  }
  // Now v[4 g + j] holds, in its 128-bit lane l, column 4 l + j of rows 4 g .. 4 g + 3.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const VecQ a = (VecQ)v[j], b = (VecQ)v[4 + j], c = (VecQ)v[8 + j], d = (VecQ)v[12 + j];
    const VecQ ab_even = __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13);
    const VecQ ab_odd = __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15);
    const VecQ cd_even = __builtin_shufflevector(c, d, 0, 1, 4, 5, 8, 9, 12, 13);
    const VecQ cd_odd = __builtin_shufflevector(c, d, 2, 3, 6, 7, 10, 11, 14, 15);
    t[j] = (VecU)__builtin_shufflevector(ab_even, cd_even, 0, 1, 4, 5, 8, 9, 12, 13);
    t[8 + j] = (VecU)__builtin_shufflevector(ab_even, cd_even, 2, 3, 6, 7, 10, 11, 14, 15);
    t[4 + j] = (VecU)__builtin_shufflevector(ab_odd, cd_odd, 0, 1, 4, 5, 8, 9, 12, 13);
    t[12 + j] = (VecU)__builtin_shufflevector(ab_odd, cd_odd, 2, 3, 6, 7, 10, 11, 14, 15);
  }
  for (int i = 0; i < 16; ++i) v[i] = t[i];
}

// 8 x 8 elements of 64 bits.
PAGODA_INLINE void Transpose8(VecQ (&v)[8]) {
  VecQ t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = __builtin_shufflevector(v[i], v[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    t[i + 1] = __builtin_shufflevector(v[i], v[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  // Lane l of t[2 g + j]: column 2 l + j of rows 2 g, 2 g + 1.
#pragma GCC unroll 2
  for (int j = 0; j < 2; ++j) {
    const VecQ a = t[j], b = t[2 + j], c = t[4 + j], d = t[6 + j];
    const VecQ ab_even = __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13);
    const VecQ ab_odd = __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15);
    const VecQ cd_even = __builtin_shufflevector(c, d, 0, 1, 4, 5, 8, 9, 12, 13);
    const VecQ cd_odd = __builtin_shufflevector(c, d, 2, 3, 6, 7, 10, 11, 14, 15);
    v[j] = __builtin_shufflevector(ab_even, cd_even, 0, 1, 4, 5, 8, 9, 12, 13);
    v[4 + j] = __builtin_shufflevector(ab_even, cd_even, 2, 3, 6, 7, 10, 11, 14, 15);
    v[2 + j] = __builtin_shufflevector(ab_odd, cd_odd, 0, 1, 4, 5, 8, 9, 12, 13);
    v[6 + j] = __builtin_shufflevector(ab_odd, cd_odd, 2, 3, 6, 7, 10, 11, 14, 15);
  }
}

PAGODA_INLINE VecU LoadDwords(const void* p, int64_t count) {
  if (count >= 16) return LoadAs<VecU>(static_cast<const char*>(p));
  return (VecU)_mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << count) - 1), p);
}

// out[pair][key][2] = rows[key][2 * pair .. 2 * pair + 1] for 16 rows.
PAGODA_INLINE void TransposePairs(const uint16_t* const* rows, int64_t num_pairs, uint16_t* out) {
  for (int64_t p = 0; p < num_pairs; p += 16) {
    const int64_t count = num_pairs - p < 16 ? num_pairs - p : 16;
    VecU v[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) v[i] = LoadDwords(rows[i] + 2 * p, count);
    Transpose16(v);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (i < count) std::memcpy(out + (p + i) * 32, &v[i], 64);
    }
  }
}
PAGODA_INLINE void TransposePairs(const float* const* rows, int64_t num_pairs, float* out) {
  for (int64_t p = 0; p < num_pairs; p += 8) {
    const int64_t count = num_pairs - p < 8 ? num_pairs - p : 8;
    for (int half = 0; half < 2; ++half) {
      VecQ v[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) v[i] = (VecQ)LoadDwords(rows[8 * half + i] + 2 * p, 2 * count);
      Transpose8(v);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        if (i < count) std::memcpy(out + (p + i) * 32 + 16 * half, &v[i], 64);
      }
    }
  }
}

// out[panel][i][2] = {a[16 * panel + i], b[16 * panel + i]}, panels panel_stride apart, the last
// one zero padded.
PAGODA_INLINE void InterleaveRows(
    const uint16_t* a, const uint16_t* b, int64_t d, int64_t panel_stride, uint16_t* out) {
  for (int64_t i = 0; i < d; i += kLanes) {
    const auto mask = static_cast<__mmask16>(d - i >= kLanes ? 0xffffu : (1u << (d - i)) - 1);
    const VecU low = (VecU)_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, a + i));
    const VecU high = (VecU)_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, b + i));
    const VecU both = low | (high << 16);
    std::memcpy(out, &both, 64);
    out += panel_stride;
  }
}
PAGODA_INLINE void InterleaveRows(
    const float* a, const float* b, int64_t d, int64_t panel_stride, float* out) {
  for (int64_t i = 0; i < d; i += kLanes) {
    const VecU x = LoadDwords(a + i, d - i);
    const VecU y = LoadDwords(b + i, d - i);
    const VecU first =
        __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const VecU second =
        __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    std::memcpy(out, &first, 64);
    std::memcpy(out + 16, &second, 64);
    out += panel_stride;
  }
}

#else

template <typename T>
PAGODA_INLINE void TransposePairs(const T* const* rows, int64_t num_pairs, T* out) {
  for (int key = 0; key < kLanes; ++key) {
    for (int64_t p = 0; p < num_pairs; ++p)
      std::memcpy(out + (p * kLanes + key) * 2, rows[key] + 2 * p, 2 * sizeof(T));
  }
}

template <typename T>
PAGODA_INLINE void InterleaveRows(const T* a, const T* b, int64_t d, int64_t panel_stride, T* out) {
  for (int64_t first = 0; first < d; first += kLanes) {
    const int64_t count = d - first < kLanes ? d - first : kLanes;
    for (int64_t i = 0; i < count; ++i) {
      out[2 * i] = a[first + i];
      out[2 * i + 1] = b[first + i];
    }
    for (int64_t i = count; i < kLanes; ++i) out[2 * i] = out[2 * i + 1] = T{};
    out += panel_stride;
  }
}

#endif

}  // namespace
}  // namespace pagoda::kernels::cpu
