#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/primitives.cuh"
#include "kernels/cuda/sample/sample_args.h"

// What both sampling kernels are made of: the order of tokens, the noise, and a search for the
// noisiest token that computes noise only for those that can win.

namespace pagoda::kernels::cuda {

inline constexpr int kGroup = 4;  // tokens that share a Philox block; one 16-byte load
inline constexpr float kLog2E = 1.4426950408889634f;

// ---- Order: higher value first, lower id on ties. Keys order like (value, -id); 0 is below every
// token and kNanKey above.

inline constexpr unsigned long long kNoKey = 0;
inline constexpr unsigned long long kNanKey = ~0ull;

// Monotone map of floats to integers; -0 equals +0. NaN is not mapped.
__device__ __forceinline__ uint32_t OrderedBits(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float FromOrderedBits(uint32_t ordered) {
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}
__device__ __forceinline__ unsigned long long SortKey(float value, int32_t id) {
  return static_cast<unsigned long long>(OrderedBits(value)) << 32 | ~static_cast<uint32_t>(id);
}
__device__ __forceinline__ float KeyValue(unsigned long long key) {
  return FromOrderedBits(static_cast<uint32_t>(key >> 32));
}
__device__ __forceinline__ int32_t KeyId(unsigned long long key) {
  return static_cast<int32_t>(~static_cast<uint32_t>(key));
}

__device__ __forceinline__ unsigned long long WarpMaxKey(unsigned long long key) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    const unsigned long long other = __shfl_xor_sync(kFullWarp, key, offset);
    key = other > key ? other : key;
  }
  return key;
}

// Largest key of the block, in every thread. `scratch` has 32 elements; two uses of one scratch are
// separated by
// __syncthreads.
__device__ __forceinline__ unsigned long long BlockMaxKey(unsigned long long key,
                                                          unsigned long long* scratch) {
  key = WarpMaxKey(key);
  const int lane = threadIdx.x & 31;
  if (lane == 0) scratch[threadIdx.x >> 5] = key;
  __syncthreads();
  const int num_warps = (blockDim.x + 31) >> 5;
  return WarpMaxKey(lane < num_warps ? scratch[lane] : kNoKey);
}

// A row's parameters, all of them under way at once.
__device__ __forceinline__ SampleRow LoadRow(const SampleRow* row) {
  constexpr int kWords = sizeof(SampleRow) / sizeof(uint2);
  static_assert(sizeof(SampleRow) % sizeof(uint2) == 0 && alignof(SampleRow) == alignof(uint2));
  uint2 words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(words[i].x), "=r"(words[i].y)
                 : "l"(reinterpret_cast<const uint2*>(row) + i)
                 : "memory");
  }
  SampleRow loaded;
  memcpy(&loaded, words, sizeof(loaded));
  return loaded;
}

// ---- Noise.

__device__ __forceinline__ PhiloxBlock NoiseBits(uint64_t seed, int64_t position, int32_t group) {
  return Philox4x32<kNoiseRounds>(
      seed, static_cast<uint64_t>(position), static_cast<uint64_t>(group));
}

// The accurate logf: near 1, where the largest noise is made, an approximate one has no correct
// digit.
__device__ __forceinline__ float Gumbel(uint32_t bits) {
  return -logf(-logf(UniformFromBits(bits)));
}

__device__ __forceinline__ float Exp2Approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The best token that a thread has met, and the best of its block to prune by.
//
// A token's value is v = (z - offset) / temperature + g with g = -log(-log(u)). As -log(u) >= 1 -
// u, v > B needs 1 - u < exp((z - offset) / temperature - B): one exponential for four tokens, and
// after the first few thousand tokens hardly any group passes.
struct NoisyBest {
  float value = -INFINITY;
  int32_t id = -1;

  __device__ unsigned long long Key() const { return id < 0 ? kNoKey : SortKey(value, id); }
};

struct NoiseParams {
  uint64_t seed;
  int64_t position;
  float temperature;
  float offset;
  float scale_log2;  // log2(e) / temperature
};

// Largest of a group; NaN if one of them is.
__device__ __forceinline__ float GroupMax(const float (&z)[kGroup]) {
  float a, b, both;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(a) : "f"(z[0]), "f"(z[1]));
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(b) : "f"(z[2]), "f"(z[3]));
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(both) : "f"(a), "f"(b));
  return both;
}

// What the exponent of a group must exceed, from the best value so far, in units of log 2. Smaller
// than it need be by room for the rounding of the fast arithmetic; -inf bounds nothing.
__device__ __forceinline__ float PruningBoundOf(float best) {
  const float bound = best * kLog2E;
  return bound - (0.02f + 4e-7f * fabsf(bound));
}
__device__ __forceinline__ float PruningBound(const uint32_t* block_best) {
  return PruningBoundOf(FromOrderedBits(*static_cast<const volatile uint32_t*>(block_best)));
}

// Meets tokens 4 * group .. 4 * group + 3, whose largest logit is `largest`; those out of play have
// z = -inf. `block_best` (shared memory) is the OrderedBits of the best value that any thread of
// the block has met, at first those of -inf, and `bound` its PruningBound, or an earlier one. Ids
// met by one thread ascend.
__device__ __forceinline__ void MeetGroup(const float (&z)[kGroup],
                                          int32_t group,
                                          float largest,
                                          const NoiseParams& noise,
                                          float bound,
                                          uint32_t* block_best,
                                          NoisyBest* best) {
  const float exponent = (largest - noise.offset) * noise.scale_log2 - bound;
  // No 1 - u is below 2^-24: not even the largest noise helps.
  if (exponent < -24.0f) return;
  const PhiloxBlock bits = NoiseBits(noise.seed, noise.position, group);
  const uint32_t largest_bits =
      max(max(bits.word[0], bits.word[1]), max(bits.word[2], bits.word[3]));
  // The smallest 1 - u is the uniform of the complement; its cell's lower end takes no conversion.
  const float least = __uint_as_float(0x3f800000u | (~largest_bits >> 9)) - 1.0f;
  if (!(Exp2Approx(exponent) >= least)) return;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    if (!(z[i] > -INFINITY)) continue;
    // The same test for one token: the accurate noise is dear.
    const float own = __uint_as_float(0x3f800000u | (~bits.word[i] >> 9)) - 1.0f;
    if (!(Exp2Approx((z[i] - noise.offset) * noise.scale_log2 - bound) >= own)) continue;
    const float value = (z[i] - noise.offset) / noise.temperature + Gumbel(bits.word[i]);
    if (value > best->value || best->id < 0) {
      *best = {value, group * kGroup + i};
      atomicMax(block_best, OrderedBits(value));
    }
  }
}

}  // namespace pagoda::kernels::cuda
