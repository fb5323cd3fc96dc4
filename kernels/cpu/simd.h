// Sixteen lanes, whatever the instruction set: one 512-bit register, two of 256 or four of 128.
// Included only by the per-ISA files, each compiled with its own flags; everything is in an unnamed
// namespace, so that nothing compiled for a newer processor can be linked into code that an older
// one runs.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pagoda::kernels::cpu {
namespace {

#define PAGODA_INLINE inline __attribute__((always_inline))

constexpr int kLanes = 16;

typedef float VecF __attribute__((vector_size(64)));
typedef int32_t VecI __attribute__((vector_size(64)));
typedef uint32_t VecU __attribute__((vector_size(64)));

PAGODA_INLINE VecF Zero() { return VecF{}; }
PAGODA_INLINE VecF Set1(float value) { return value - VecF{}; }
PAGODA_INLINE VecU Set1U(uint32_t value) { return value - VecU{}; }

template <typename V, typename T>
PAGODA_INLINE V LoadAs(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
PAGODA_INLINE VecF Load(const float* p) { return LoadAs<VecF>(p); }
PAGODA_INLINE void Store(VecF v, float* p) { std::memcpy(p, &v, sizeof(v)); }

// The first `count` lanes; the others are `other`. 0 <= count <= 16.
PAGODA_INLINE VecF LoadPartial(const float* p, int64_t count, float other = 0.0f) {
  if (count >= kLanes) return Load(p);
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = i < count ? p[i] : other;
  return Load(lanes);
}
PAGODA_INLINE void StorePartial(VecF v, float* p, int64_t count) {
  if (count >= kLanes) return Store(v, p);
  float lanes[kLanes];
  Store(v, lanes);
  for (int64_t i = 0; i < count; ++i) p[i] = lanes[i];
}

// Between vectors of one size a cast keeps the bits.
PAGODA_INLINE VecF AsF(VecU v) { return (VecF)v; }
PAGODA_INLINE VecU AsU(VecF v) { return (VecU)v; }

// a * b + c, rounded once where the processor can.
PAGODA_INLINE VecF Fma(VecF a, VecF b, VecF c) {
#if defined(__AVX512F__)
  return (VecF)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  __m256 av[2], bv[2], cv[2];
  std::memcpy(av, &a, 64);
  std::memcpy(bv, &b, 64);
  std::memcpy(cv, &c, 64);
  cv[0] = _mm256_fmadd_ps(av[0], bv[0], cv[0]);
  cv[1] = _mm256_fmadd_ps(av[1], bv[1], cv[1]);
  std::memcpy(&c, cv, 64);
  return c;
#else
  return a * b + c;
#endif
}

// A NaN in b is kept.
PAGODA_INLINE VecF Max(VecF a, VecF b) {
#if defined(__AVX512F__)
  return (VecF)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}
PAGODA_INLINE VecF Min(VecF a, VecF b) {
#if defined(__AVX512F__)
  return (VecF)_mm512_min_ps((__m512)a, (__m512)b);
#else
  return a < b ? a : b;
#endif
}

// Lanes combined in one fixed order: i with i + 8, then i + 4, i + 2, i + 1.
PAGODA_INLINE float ReduceAdd(VecF v) {
#if defined(__AVX512F__)
  const __m512 w = (__m512)v;
  const __m256 a =
      _mm256_add_ps(_mm512_castps512_ps256(w), (__m256)_mm512_extractf64x4_pd((__m512d)w, 1));
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
#else
  float lanes[kLanes];
  Store(v, lanes);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
#endif
}
PAGODA_INLINE float ReduceMax(VecF v) {
#if defined(__AVX512F__)
  const __m512 w = (__m512)v;
  const __m256 a =
      _mm256_max_ps(_mm512_castps512_ps256(w), (__m256)_mm512_extractf64x4_pd((__m512d)w, 1));
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
#else
  float lanes[kLanes];
  Store(v, lanes);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i)
      lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  }
  return lanes[0];
#endif
}

// Nearest integer, ties to even, for |v| < 2^22.
PAGODA_INLINE VecF RoundSmall(VecF v) {
  const VecF magic = Set1(12582912.0f);  // 1.5 * 2^23
  return (v + magic) - magic;
}
PAGODA_INLINE VecI ToInt(VecF v) { return __builtin_convertvector(v, VecI); }
PAGODA_INLINE VecF ToFloat(VecI v) { return __builtin_convertvector(v, VecF); }
PAGODA_INLINE VecF ToFloat(VecU v) { return __builtin_convertvector((VecI)v, VecF); }

PAGODA_INLINE VecI LaneIndex() {
  return VecI{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}

PAGODA_INLINE float BitsToFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
PAGODA_INLINE uint32_t FloatToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
PAGODA_INLINE float FromBf16(uint16_t bits) { return BitsToFloat(uint32_t{bits} << 16); }
// Nearest, ties to even; NaN stays NaN.
PAGODA_INLINE uint16_t ToBf16(float value) {
  const uint32_t u = FloatToBits(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
// The same for 16 lanes, as floats.
PAGODA_INLINE VecU RoundToBf16(VecF v) {
  const VecU u = AsU(v);
  const VecU rounded = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  const VecU quiet = (u | 0x400000u) & 0xffff0000u;
  return (v != v) ? quiet : rounded;
}

}  // namespace
}  // namespace pagoda::kernels::cpu
