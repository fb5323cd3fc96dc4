// Sixteen lanes, whatever the instruction set: one 512-bit register or two of 256.
// Included only by the per-ISA files, each compiled with its own flags; everything is in an unnamed
// namespace, so that nothing compiled for a newer processor can be linked into code that an older
// one runs.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if !defined(__AVX512F__)
#include "kernels/cpu/simd_pair.h"
#endif

namespace pagoda::kernels::cpu {
namespace {

#define PAGODA_INLINE inline __attribute__((always_inline))

constexpr int kLanes = 16;

#if defined(__AVX512F__)
typedef float VecF __attribute__((vector_size(64)));
typedef int32_t VecI __attribute__((vector_size(64)));
typedef uint32_t VecU __attribute__((vector_size(64)));
typedef uint64_t VecQ __attribute__((vector_size(64)));

PAGODA_INLINE VecF Set1(float value) { return value - VecF{}; }
PAGODA_INLINE VecU Set1U(uint32_t value) { return value - VecU{}; }
// Lane by lane: mask ? a : b.
PAGODA_INLINE VecF Select(VecI mask, VecF a, VecF b) { return mask ? a : b; }
PAGODA_INLINE VecU Select(VecI mask, VecU a, VecU b) { return mask ? a : b; }
PAGODA_INLINE VecI Select(VecI mask, VecI a, VecI b) { return mask ? a : b; }
#else
using VecF = Pair<float>;
using VecI = Pair<int32_t>;
using VecU = Pair<uint32_t>;
using VecQ = Pair<uint64_t>;

PAGODA_INLINE VecF Set1(float value) { return {value - VecF::Half{}, value - VecF::Half{}}; }
PAGODA_INLINE VecU Set1U(uint32_t value) { return {value - VecU::Half{}, value - VecU::Half{}}; }
template <typename T>
PAGODA_INLINE Pair<T> Select(VecI mask, Pair<T> a, Pair<T> b) {
#if defined(__AVX2__)
  // A lane's top bit decides, which masks have.
  return {(typename Pair<T>::Half)_mm256_blendv_ps((__m256)b.lo, (__m256)a.lo, (__m256)mask.lo),
          (typename Pair<T>::Half)_mm256_blendv_ps((__m256)b.hi, (__m256)a.hi, (__m256)mask.hi)};
#else
  return {mask.lo ? a.lo : b.lo, mask.hi ? a.hi : b.hi};
#endif
}
#endif
PAGODA_INLINE VecF Zero() { return VecF{}; }

template <typename V, typename T>
PAGODA_INLINE V LoadAs(const T* p) {
  V v;
#if defined(__AVX512F__)
  std::memcpy(&v, p, sizeof(v));
#else
  // By halves: GCC copies 64 bytes through memory, in pieces that stall the loads after them.
  std::memcpy(&v.lo, p, 32);
  std::memcpy(&v.hi, reinterpret_cast<const char*>(p) + 32, 32);
#endif
  return v;
}
PAGODA_INLINE VecF Load(const float* p) { return LoadAs<VecF>(p); }
PAGODA_INLINE void Store(VecF v, float* p) {
#if defined(__AVX512F__)
  std::memcpy(p, &v, sizeof(v));
#else
  std::memcpy(p, &v.lo, 32);
  std::memcpy(p + 8, &v.hi, 32);
#endif
}

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
  return {(VecF::Half)_mm256_fmadd_ps((__m256)a.lo, (__m256)b.lo, (__m256)c.lo),
          (VecF::Half)_mm256_fmadd_ps((__m256)a.hi, (__m256)b.hi, (__m256)c.hi)};
#else
  return a * b + c;
#endif
}

// A NaN in b is kept.
PAGODA_INLINE VecF Max(VecF a, VecF b) {
#if defined(__AVX512F__)
  return (VecF)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return {(VecF::Half)_mm256_max_ps((__m256)a.lo, (__m256)b.lo),
          (VecF::Half)_mm256_max_ps((__m256)a.hi, (__m256)b.hi)};
#else
  return Select(a > b, a, b);
#endif
}
PAGODA_INLINE VecF Min(VecF a, VecF b) {
#if defined(__AVX512F__)
  return (VecF)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return {(VecF::Half)_mm256_min_ps((__m256)a.lo, (__m256)b.lo),
          (VecF::Half)_mm256_min_ps((__m256)a.hi, (__m256)b.hi)};
#else
  return Select(a < b, a, b);
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
#elif defined(__AVX2__)
  const __m256 a = (__m256)(v.lo + v.hi);
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
#elif defined(__AVX2__)
  const __m256 a = _mm256_max_ps((__m256)v.lo, (__m256)v.hi);
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
#if defined(__AVX512F__)
PAGODA_INLINE VecI ToInt(VecF v) { return __builtin_convertvector(v, VecI); }
PAGODA_INLINE VecF ToFloat(VecI v) { return __builtin_convertvector(v, VecF); }
#else
PAGODA_INLINE VecI ToInt(VecF v) {
  return {__builtin_convertvector(v.lo, VecI::Half), __builtin_convertvector(v.hi, VecI::Half)};
}
PAGODA_INLINE VecF ToFloat(VecI v) {
  return {__builtin_convertvector(v.lo, VecF::Half), __builtin_convertvector(v.hi, VecF::Half)};
}
#endif
PAGODA_INLINE VecF ToFloat(VecU v) { return ToFloat((VecI)v); }

PAGODA_INLINE VecI LaneIndex() {
  static constexpr int32_t kIndex[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return LoadAs<VecI>(kIndex);
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
  return Select(v != v, quiet, rounded);
}

}  // namespace
}  // namespace pagoda::kernels::cpu
