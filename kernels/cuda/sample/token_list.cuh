#pragma once

#include "kernels/cuda/sample/sample_device.cuh"

// The end of a row whose tokens that can be kept are few: a sorted list of them in shared memory,
// cut and drawn from by one block.

namespace pagoda::kernels::cuda {

// Of logits to scaled ones, (z - largest) / temperature, and their weights.
struct RowScale {
  float largest = 0.0f;
  float temperature = 1.0f;
  float log2 = 1.0f;  // log2(e) / temperature

  __device__ float Scaled(float z) const { return (z - largest) / temperature; }
  // exp of the scaled logit.
  __device__ float Weight(float z) const { return Exp2Approx((z - largest) * log2); }
};
__device__ __forceinline__ RowScale MakeRowScale(float largest, float temperature) {
  // As good as zero, and its inverse is finite.
  const float divisor = fmaxf(temperature, 1e-30f);
  return {largest, divisor, kLog2E / divisor};
}

// By one warp: index in a list of `size` with which the weights of its prefix reach target.
template <typename ValueFn>
__device__ int FirstReaching(const RowScale& scale, int size, double target, ValueFn&& value) {
  const int lane = threadIdx.x & 31;
  const int per_lane = (size + 31) / 32;
  const int begin = min(size, lane * per_lane);
  const int end = min(size, begin + per_lane);
  double own = 0.0;
  for (int i = begin; i < end; ++i) own += scale.Weight(value(i));
  double through = own;
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const double other = __shfl_up_sync(kFullWarp, through, offset);
    if (lane >= offset) through += other;
  }
  const unsigned reaching = __ballot_sync(kFullWarp, begin < end && through >= target);
  if (reaching == 0) return size - 1;
  int cut = begin;
  for (double sum = through - own; cut < end - 1; ++cut) {
    sum += scale.Weight(value(cut));
    if (sum >= target) break;
  }
  return __shfl_sync(kFullWarp, cut, __ffs(static_cast<int>(reaching)) - 1);
}

inline constexpr double kMassOfList = -1.0;

// top_k, top_p and the noise on the SortKeys of tokens in order, by all threads of a block: the
// drawn token's key, in every thread. `mass` is that of all tokens in play; kMassOfList: of the
// first top_k in the list. `scratch` has 32 elements.
__device__ __noinline__ inline unsigned long long DrawFromList(const unsigned long long* list,
                                                               int size,
                                                               const SampleRow& row,
                                                               const RowScale& scale,
                                                               double mass,
                                                               unsigned long long* scratch) {
  __shared__ int num_kept;
  if (threadIdx.x < 32) {
    const auto value = [&](int i) { return KeyValue(list[i]); };
    int kept = size;
    if (mass == kMassOfList) kept = min(size, row.top_k);
    if (row.top_p < 1.0f) {
      if (mass == kMassOfList) {
        mass = 0.0;
        for (int i = threadIdx.x; i < kept; i += 32) mass += scale.Weight(value(i));
#pragma unroll
        for (int offset = 16; offset > 0; offset >>= 1) {
          mass += __shfl_xor_sync(kFullWarp, mass, offset);
        }
      }
      kept = FirstReaching(scale, kept, row.top_p * mass, value) + 1;
    }
    if (threadIdx.x == 0) num_kept = kept;
  }
  __syncthreads();
  NoisyBest best;
  for (int i = threadIdx.x; i < num_kept; i += blockDim.x) {
    const unsigned long long key = list[i];
    const int32_t id = KeyId(key);
    const PhiloxBlock bits = NoiseBits(row.seed, row.position, id / kGroup);
    const int word = id % kGroup;
    const uint32_t word_bits = word < 2 ? (word == 0 ? bits.word[0] : bits.word[1])
                                        : (word == 2 ? bits.word[2] : bits.word[3]);
    const float noisy = scale.Scaled(KeyValue(key)) + Gumbel(word_bits);
    if (best.id < 0 || noisy > best.value || (noisy == best.value && id < best.id)) {
      best = {noisy, id};
    }
  }
  __syncthreads();
  return BlockMaxKey(best.Key(), scratch);
}

}  // namespace pagoda::kernels::cuda
