#pragma once

#include <array>
#include <cstdint>

// Philox-4x32: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
// Usable from host and device code.

#ifdef __CUDACC__
#define PAGODA_HOST_DEVICE __host__ __device__
#else
#define PAGODA_HOST_DEVICE
#endif

namespace pagoda::kernels {

// High half of the counter for random weights: apart from the sampler's, which are token ids.
inline constexpr uint64_t kNormalStream = 0x6e6f726d616cu;

// Rounds of the sampler's noise: the fewest that pass all tests of BigCrush, by that paper. Random
// weights have ten.
inline constexpr int kNoiseRounds = 7;

// On the device one instruction: of the plain product the compiler makes one more, an addition of
// zero.
PAGODA_HOST_DEVICE inline uint64_t MultiplyWide(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return uint64_t{a} * b;
#endif
}

struct PhiloxBlock {
  uint32_t word[4];
};

template <int kRounds = 10>
PAGODA_HOST_DEVICE inline PhiloxBlock Philox4x32(uint64_t key,
                                                 uint64_t counter_lo,
                                                 uint64_t counter_hi) {
  uint32_t c0 = static_cast<uint32_t>(counter_lo), c1 = static_cast<uint32_t>(counter_lo >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_hi), c3 = static_cast<uint32_t>(counter_hi >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p0 = MultiplyWide(0xD2511F53u, c0);
    const uint64_t p1 = MultiplyWide(0xCD9E8D57u, c2);
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Uniform in (0, 1), never 0 or 1: 23 bits at the centres of their cells, so that float32 holds it
// exactly.
PAGODA_HOST_DEVICE inline float UniformFromBits(uint32_t bits) {
  return (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f;
}

}  // namespace pagoda::kernels
