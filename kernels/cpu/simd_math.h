// Elementary functions of 16 lanes, accurate to a few units in the last place of float32. NaN in,
// NaN out.
#pragma once

#include "kernels/cpu/simd.h"

namespace pagoda::kernels::cpu {
namespace {

// e^x; 0 below -87.3 (never a subnormal), infinity above 88.7.
PAGODA_INLINE VecF Exp(VecF x) {
  // The bounds come first in Max and Min so that a NaN in x passes.
  const VecF clamped = Min(Set1(89.0f), Max(Set1(-88.0f), x));
  const VecF n = RoundSmall(clamped * Set1(1.44269504f));
  // ln 2 in two parts: n * high is exact.
  VecF r = Fma(n, Set1(-0.693359375f), clamped);
  r = Fma(n, Set1(2.12194440e-4f), r);
  // Minimax polynomial of degree 6 over [-ln 2 / 2, ln 2 / 2] (Cephes expf).
  VecF p = Set1(1.9875691500e-4f);
  p = Fma(p, r, Set1(1.3981999507e-3f));
  p = Fma(p, r, Set1(8.3334519073e-3f));
  p = Fma(p, r, Set1(4.1665795894e-2f));
  p = Fma(p, r, Set1(1.6666665459e-1f));
  p = Fma(p, r, Set1(5.0000001201e-1f));
  p = Fma(p, r * r, r) + Set1(1.0f);
  // 2^n in two factors, since n = 128 alone overflows.
  const VecI exponent = ToInt(n);
  const VecI half = exponent >> 1;
  const VecF scale_a = AsF((VecU)((half + 127) << 23));
  const VecF scale_b = AsF((VecU)((exponent - half + 127) << 23));
  const VecF y = p * scale_a * scale_b;
  return Select(x < Set1(-87.3f), Zero(), y);
}

// 2^x for x <= 0 (and a little above); 0 where the result would be subnormal.
PAGODA_INLINE VecF Exp2(VecF x) {
#if defined(__AVX512F__)
  const VecF n = (VecF)_mm512_roundscale_ps((__m512)x, 0);
#else
  x = Max(Set1(-150.0f), x);
  const VecF n = RoundSmall(x);
#endif
  const VecF r = x - n;
  // Polynomial of degree 6 over [-0.5, 0.5] (Cephes exp2f).
  VecF p = Set1(1.535336188e-4f);
  p = Fma(p, r, Set1(1.339887440e-3f));
  p = Fma(p, r, Set1(9.618437357e-3f));
  p = Fma(p, r, Set1(5.550332471e-2f));
  p = Fma(p, r, Set1(2.402264791e-1f));
  p = Fma(p, r, Set1(6.931472028e-1f));
  p = Fma(p, r, Set1(1.0f));
#if defined(__AVX512F__)
  p = (VecF)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  p = p * AsF((VecU)(Select(Max(Set1(-127.0f), n) == n, ToInt(n) + 127, VecI{}) << 23));
#endif
  return Select(x < Set1(-126.0f), Zero(), p);
}

// ln x for normal x > 0; -inf for 0.
PAGODA_INLINE VecF Log(VecF x) {
  const VecU bits = AsU(x);
  VecI exponent = (VecI)(bits >> 23) - 126;
  VecF m = AsF((bits & 0x007fffffu) | 0x3f000000u);  // [0.5, 1)
  const VecI small = m < Set1(0.70710678f);
  exponent = exponent + small;  // true is -1
  m = Select(small, m + m, m) - Set1(1.0f);
  const VecF z = m * m;
  VecF p = Set1(7.0376836292e-2f);
  p = Fma(p, m, Set1(-1.1514610310e-1f));
  p = Fma(p, m, Set1(1.1676998740e-1f));
  p = Fma(p, m, Set1(-1.2420140846e-1f));
  p = Fma(p, m, Set1(1.4249322787e-1f));
  p = Fma(p, m, Set1(-1.6668057665e-1f));
  p = Fma(p, m, Set1(2.0000714765e-1f));
  p = Fma(p, m, Set1(-2.4999993993e-1f));
  p = Fma(p, m, Set1(3.3333331174e-1f));
  const VecF e = ToFloat(exponent);
  VecF y = m * z * p;
  y = Fma(e, Set1(-2.12194440e-4f), y);
  y = Fma(z, Set1(-0.5f), y);
  y = m + y;
  y = Fma(e, Set1(0.693359375f), y);
  y = Select(x == Zero(), Set1(-__builtin_inff()), y);
  return Select((x == Set1(__builtin_inff())) | (x != x), x, y);
}

// tanh x = 1 - 2 / (e^2x + 1), and a polynomial near 0 where that cancels.
PAGODA_INLINE VecF Tanh(VecF x) {
  const VecF magnitude = AsF(AsU(x) & 0x7fffffffu);
  const VecF large = Set1(1.0f) - Set1(2.0f) / (Exp(magnitude + magnitude) + Set1(1.0f));
  const VecF z = x * x;
  VecF p = Set1(-5.70498872745e-3f);
  p = Fma(p, z, Set1(2.06390887954e-2f));
  p = Fma(p, z, Set1(-5.37397155531e-2f));
  p = Fma(p, z, Set1(1.33314422036e-1f));
  p = Fma(p, z, Set1(-3.33332819422e-1f));
  const VecF tiny = Fma(p * z, magnitude, magnitude);
  const VecF y = Select(magnitude < Set1(0.625f), tiny, large);
  return AsF(AsU(y) | (AsU(x) & 0x80000000u));
}

// x / (1 + e^-x).
PAGODA_INLINE VecF Silu(VecF x) { return x / (Set1(1.0f) + Exp(-x)); }

// cos and sin of 2 pi u, for |u| < 2^20.
PAGODA_INLINE void CosSinTurns(VecF u, VecF* cos, VecF* sin) {
  const VecF t = u - RoundSmall(u);
  const VecF quarters = RoundSmall(t * Set1(4.0f));
  const VecF x = Fma(quarters, Set1(-0.25f), t) * Set1(6.28318531f);  // [-pi / 4, pi / 4]
  const VecF z = x * x;
  VecF s = Set1(-1.9515295891e-4f);
  s = Fma(s, z, Set1(8.3321608736e-3f));
  s = Fma(s, z, Set1(-1.6666654611e-1f));
  s = Fma(s * z, x, x);
  VecF c = Set1(2.443315711809948e-5f);
  c = Fma(c, z, Set1(-1.388731625493765e-3f));
  c = Fma(c, z, Set1(4.166664568298827e-2f));
  c = Fma(c * z, z, Fma(z, Set1(-0.5f), Set1(1.0f)));
  const VecI q = ToInt(quarters);  // -2 .. 2
  const VecI is_odd = (q & 1) != 0;
  const VecF sin_value = Select(is_odd, c, s);
  const VecF cos_value = Select(is_odd, s, c);
  *sin = AsF(AsU(sin_value) ^ ((VecU)(q & 2) << 30));
  *cos = AsF(AsU(cos_value) ^ ((VecU)((q + 1) & 2) << 30));
}

}  // namespace
}  // namespace pagoda::kernels::cpu
