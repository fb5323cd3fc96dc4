#include <algorithm>

#include "kernels/cuda/sample/sample_device.cuh"
#include "kernels/cuda/sample/sampler.h"

// One pass over the logits. Each warp takes a run of units of 512 tokens, the next one on its way
// while one is met; warps never wait for each other.

namespace pagoda::kernels::cuda {
namespace {

constexpr int kStreamThreads = 512;
constexpr int kStreamWarps = kStreamThreads / 32;
constexpr int kBlocksPerSm = 1;
constexpr int kUnitGroups = kUnitTokens / kGroup / 32;  // of a lane
static_assert(kUnitGroups == kUnitBlocks);              // a block is what a warp reads at once

using Unit = float[kUnitGroups][kGroup];

// A row of logits, in units.
struct RowView {
  const float* logits;
  int32_t vocab_size;
  bool aligned;

  // Group g of this lane is the unit's group lane + 32 * g; -inf beyond the vocabulary.
  __device__ __forceinline__ void Load(int unit, Unit& z) const {
    const int lane = threadIdx.x & 31;
    const float* first = logits + unit * kUnitTokens + lane * kGroup;
    const int left = vocab_size - unit * kUnitTokens - lane * kGroup;
    if (aligned && vocab_size - unit * kUnitTokens >= kUnitTokens) {
#pragma unroll
      for (int g = 0; g < kUnitGroups; ++g) {
        const float4 v = LoadStream16(first + g * kBlockTokens);
        z[g][0] = v.x;
        z[g][1] = v.y;
        z[g][2] = v.z;
        z[g][3] = v.w;
      }
      return;
    }
#pragma unroll
    for (int g = 0; g < kUnitGroups; ++g) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const int at = g * kBlockTokens + i;
        z[g][i] = at < left ? __ldcg(first + at) : -INFINITY;
      }
    }
  }
};

// A warp's part of a row.
struct Segment {
  RowView row;
  int first;  // unit
  int count;  // units
};

// Calls fn(z, first group of this lane) for the units of a segment.
template <typename Fn>
__device__ __forceinline__ void ForUnits(const Segment& s, Fn&& fn) {
  Unit next;
  s.row.Load(s.first, next);
  // By twos, so that z and next change places without copies.
#pragma unroll 2
  for (int i = 0; i < s.count; ++i) {
    Unit z;
#pragma unroll
    for (int g = 0; g < kUnitGroups; ++g) {
#pragma unroll
      for (int j = 0; j < kGroup; ++j) z[g][j] = next[g][j];
    }
    if (i + 1 < s.count) s.row.Load(s.first + i + 1, next);
    fn(z, (s.first + i) * (kUnitTokens / kGroup) + static_cast<int>(threadIdx.x & 31));
  }
}

__device__ __forceinline__ float WarpMax(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    v = fmaxf(v, __shfl_xor_sync(kFullWarp, v, offset));
  }
  return v;
}

// Lower end of the cell of 1 - u.
__device__ __forceinline__ float LeastRest(uint32_t bits) {
  return __uint_as_float(0x3f800000u | (~bits >> 9)) - 1.0f;
}

__device__ __forceinline__ float NoisyValue(const NoiseParams& noise, float z, uint32_t bits) {
  return z / noise.temperature + Gumbel(bits);
}

// One of four registers. Not by an index: what is indexed by a variable lives in memory.
__device__ __forceinline__ uint32_t Choose(bool second, uint32_t a, uint32_t b) {
  uint32_t chosen;
  asm("{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %3, 0;\n"
      "selp.b32 %0, %2, %1, p;\n"
      "}\n"
      : "=r"(chosen)
      : "r"(a), "r"(b), "r"(static_cast<uint32_t>(second)));
  return chosen;
}
__device__ __forceinline__ uint32_t
ChooseOf4(int i, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const bool odd = (i & 1) != 0;
  return Choose((i & 2) != 0, Choose(odd, a, b), Choose(odd, c, d));
}
__device__ __forceinline__ float ChooseOf4(int i, float a, float b, float c, float d) {
  return __uint_as_float(
      ChooseOf4(i, __float_as_uint(a), __float_as_uint(b), __float_as_uint(c), __float_as_uint(d)));
}

// How far below the log of the sum of a segment's weights its best noisy value is guessed to be at
// least, in units of log 2: it is lower in one of a hundred, that of the row hardly ever.
constexpr float kGuessBelow = 1.5f * kLog2E;

// The noisy argmax of a warp's part of a row. Tokens that cannot win are dropped before their noise
// is made: by the best value of the whole row so far, and in the beginning by a guess of what it
// will be.
class NoisyRow {
 public:
  // `row_best`: SampleRowState::best of the row.
  // `num_units`: of the segment; 0: nothing is guessed.
  __device__ NoisyRow(const NoiseParams& noise, unsigned long long* row_best, int num_units)
      : noise_(noise), row_best_(row_best), num_units_(num_units) {}

  // Called by the whole warp.
  __device__ __forceinline__ void Meet(const Unit& z,
                                       const float (&largest)[kUnitGroups],
                                       int32_t first_group) {
    const float most =
        fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3])) * noise_.scale_log2;
    // What was read during the unit before; not a number where there was nothing yet.
    known_ = fmaxf(known_, PruningBoundOf(FromOrderedBits(row_best_bits_)));
    row_best_bits_ = ReadBits(row_best_);
    if (num_units_ > 0 && guess_ == -INFINITY) guess_ = Guess(z, most);
    const float bound = fmaxf(guess_, known_);
    // No 1 - u is below 2^-24: not even the largest noise helps.
    if (!__any_sync(kFullWarp, most - bound >= -24.0f)) return;
    uint32_t group_bits[kUnitGroups];
    uint32_t most_bits = 0;
#pragma unroll
    for (int g = 0; g < kUnitGroups; ++g) {
      const PhiloxBlock bits = NoiseBits(noise_.seed, noise_.position, first_group + 32 * g);
      group_bits[g] = max(max(bits.word[0], bits.word[1]), max(bits.word[2], bits.word[3]));
      most_bits = max(most_bits, group_bits[g]);
    }
    // One test of all that a lane has before one of each group: few units pass it.
    if (!__any_sync(kFullWarp, Exp2Approx(most - bound) >= LeastRest(most_bits))) return;
    unsigned passing = 0;
#pragma unroll
    for (int g = 0; g < kUnitGroups; ++g) {
      const float exponent = largest[g] * noise_.scale_log2 - bound;
      passing |= Exp2Approx(exponent) >= LeastRest(group_bits[g]) ? 1u << g : 0u;
    }
    while (passing != 0) {
      const int g = __ffs(static_cast<int>(passing)) - 1;
      passing &= passing - 1;
      float group_z[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        group_z[i] = ChooseOf4(g, z[0][i], z[1][i], z[2][i], z[3][i]);
      }
      MeetTokens(group_z, first_group + 32 * g, bound);
    }
    __syncwarp();
    const float best = WarpMax(best_.value);
    const float own = PruningBoundOf(best);
    if (!(best > -INFINITY && own > known_)) return;
    known_ = own;
    if (best_.value == best) atomicMax(row_best_, best_.Key());
  }

  // Whether the guess was too high: a token that it dropped may win.
  __device__ bool GuessedWrong() const { return known_ < guess_; }
  __device__ const NoisyBest& best() const { return best_; }

 private:
  // The tokens of one group that may win.
  __device__ __forceinline__ void MeetTokens(const float (&z)[kGroup], int32_t group, float bound) {
    const PhiloxBlock bits = NoiseBits(noise_.seed, noise_.position, group);
    const uint32_t(&words)[kGroup] = bits.word;
    unsigned passing = 0;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const float exponent = z[i] * noise_.scale_log2 - bound;
      if (z[i] > -INFINITY && Exp2Approx(exponent) >= LeastRest(words[i])) passing |= 1u << i;
    }
    while (passing != 0) {
      const int i = __ffs(static_cast<int>(passing)) - 1;
      passing &= passing - 1;
      const float value = NoisyValue(noise_,
                                     ChooseOf4(i, z[0], z[1], z[2], z[3]),
                                     ChooseOf4(i, words[0], words[1], words[2], words[3]));
      if (value > best_.value || best_.id < 0) best_ = {value, group * kGroup + i};
    }
  }

  // The upper half of a key that others raise meanwhile.
  static __device__ __forceinline__ uint32_t ReadBits(const unsigned long long* key) {
    uint32_t bits;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1+4];" : "=r"(bits) : "l"(key) : "memory");
    return bits;
  }

  // A pruning bound, if the segment is like this unit without its likeliest token; `most` is this
  // lane's largest exponent.
  __device__ __forceinline__ float Guess(const Unit& z, float most) const {
    const float largest = WarpMax(most);
    if (largest == -INFINITY) return -INFINITY;
    float sum = 0.0f;
#pragma unroll
    for (int g = 0; g < kUnitGroups; ++g) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) sum += Exp2Approx(z[g][i] * noise_.scale_log2 - largest);
    }
    return largest + __log2f((WarpSum(sum) - 1.0f) * static_cast<float>(num_units_)) - kGuessBelow;
  }

  const NoiseParams noise_;
  unsigned long long* const row_best_;
  const int num_units_;
  uint32_t row_best_bits_ = 0;  // OrderedBits of the best value in row_best_, as last read
  // ---- Pruning bounds, the same in every lane: of a value that the row has, and guessed.
  float known_ = -INFINITY;
  float guess_ = -INFINITY;
  NoisyBest best_;
};

class GreedyRow {
 public:
  __device__ __forceinline__ void Meet(const Unit& z,
                                       const float (&largest)[kUnitGroups],
                                       int32_t first_group) {
#pragma unroll
    for (int g = 0; g < kUnitGroups; ++g) {
      if (!(largest[g] > best_.value)) continue;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if (z[g][i] > best_.value) best_ = {z[g][i], (first_group + 32 * g) * kGroup + i};
      }
    }
  }
  __device__ const NoisyBest& best() const { return best_; }

 private:
  NoisyBest best_;
};

// Fills `search`. The SortKey of this lane's best; kNanKey if there is a NaN or +inf.
template <typename Search>
__device__ __forceinline__ unsigned long long FindBest(const Segment& segment, Search& search) {
  bool is_finite = true;
  ForUnits(segment, [&](const Unit& z, int32_t first_group) {
    float largest[kUnitGroups];
#pragma unroll
    for (int g = 0; g < kUnitGroups; ++g) {
      largest[g] = GroupMax(z[g]);
      is_finite &= largest[g] <= FLT_MAX;
    }
    search.Meet(z, largest, first_group);
  });
  return is_finite ? search.best().Key() : kNanKey;
}

// Leaves the largest logit of each block of a segment.
__device__ __forceinline__ void FindMaxima(const Segment& segment, uint32_t* maxima) {
  ForUnits(segment, [&](const Unit& z, int32_t first_group) {
    uint32_t most[kUnitBlocks];
#pragma unroll
    for (int g = 0; g < kUnitBlocks; ++g) {
      most[g] = __reduce_max_sync(kFullWarp, OrderedBits(GroupMax(z[g])));
    }
    if ((threadIdx.x & 31) == 0) {
      const int unit = first_group / (kUnitTokens / kGroup);
      reinterpret_cast<uint4*>(maxima)[unit] = {most[0], most[1], most[2], most[3]};
    }
  });
}

// Adds a warp's best of `num_units` units; whoever adds the last ones writes the row's token.
__device__ __forceinline__ void AddToRow(const SampleParams& p,
                                         int64_t row_idx,
                                         int32_t slot,
                                         unsigned long long key,
                                         uint32_t num_units,
                                         SampleRowState* states) {
  key = WarpMaxKey(key);
  if ((threadIdx.x & 31) != 0) return;
  SampleRowState& state = states[row_idx];
  atomicMax(&state.best, key);
  __threadfence();  // the key before the count
  const uint32_t num_done = atomicAdd(&state.num_done, num_units) + num_units;
  if (num_done != static_cast<uint32_t>(NumSampleUnits(p.vocab_size))) return;
  __threadfence();  // the count before others' keys
  const unsigned long long winner = atomicExch(&state.best, kNoKey);
  state.num_done = 0;
  // Infinite: every logit is -inf, or one is +inf.
  const bool valid = winner != kNanKey && winner != kNoKey && isfinite(KeyValue(winner));
  const int32_t token = valid ? KeyId(winner) : kNonFinite;
  p.tokens[row_idx] = token;
  if (slot >= 0 && slot < p.num_slots) p.last_tokens[slot] = token;
}

__global__ void __launch_bounds__(kStreamThreads, kBlocksPerSm)
    StreamKernel(const __grid_constant__ SampleParams p, SampleRowState* states, uint32_t* maxima) {
  LaunchNext();
  const int units_per_row = NumSampleUnits(p.vocab_size);
  const int64_t num_units = p.rows * units_per_row;
  const int64_t num_warps = int64_t{gridDim.x} * kStreamWarps;
  const int64_t index = int64_t{threadIdx.x / 32} * gridDim.x + blockIdx.x;
  const int64_t begin = num_units * index / num_warps;
  const int64_t end = num_units * (index + 1) / num_warps;
  int64_t row_idx = begin / units_per_row;
  auto unit = static_cast<int>(begin - row_idx * units_per_row);
  WaitForPrevious();
  for (int64_t at = begin; at < end; ++row_idx) {
    const int count = static_cast<int>(min(end - at, int64_t{units_per_row - unit}));
    const SampleRow params = LoadRow(p.row_params + row_idx);
    const float* logits = p.logits + row_idx * p.logits_stride;
    const Segment segment = {
        {logits, p.vocab_size, reinterpret_cast<uintptr_t>(logits) % 16 == 0}, unit, count};
    const SampleRoute route = RouteOf(params, row_idx, p.vocab_size);
    if (route == SampleRoute::kTop) {
      FindMaxima(segment, maxima + row_idx * int64_t{units_per_row} * kUnitBlocks);
    } else if (route == SampleRoute::kStream) {
      unsigned long long key;
      if (params.temperature == 0.0f) {
        GreedyRow search;
        key = FindBest(segment, search);
      } else {
        const NoiseParams noise = {
            params.seed, params.position, params.temperature, 0.0f, kLog2E / params.temperature};
        bool is_wrong = false;
        do {
          NoisyRow search(noise, &states[row_idx].best, is_wrong ? 0 : count);
          key = FindBest(segment, search);
          is_wrong = __any_sync(kFullWarp, search.GuessedWrong());
        } while (is_wrong);
      }
      AddToRow(p, row_idx, params.slot, key, static_cast<uint32_t>(count), states);
    }
    at += count;
    unit = 0;
  }
}

}  // namespace

absl::Status LaunchSampleStream(const DeviceContext& context,
                                const SampleParams& params,
                                SampleRowState* states,
                                uint32_t* maxima) {
  // All of them are on the device at once; few rows are spread over it.
  const int64_t num_units = params.rows * NumSampleUnits(params.vocab_size);
  const int64_t blocks = std::min<int64_t>(int64_t{context.num_sms} * kBlocksPerSm, num_units);
  return Launch(
      context,
      {.kernel = "sample_stream", .grid = static_cast<unsigned>(blocks), .block = kStreamThreads},
      StreamKernel,
      params,
      states,
      maxima);
}

}  // namespace pagoda::kernels::cuda
