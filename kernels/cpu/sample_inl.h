// Passes over one row of logits for the sampler, in blocks of 64 tokens.
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/philox_inl.h"
#include "kernels/cpu/sample_kernels.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/ops/philox.h"

namespace pagoda::kernels::cpu {
namespace {

constexpr int kBlockVecs = kRowBlock / kLanes;
constexpr float kLog2E = 1.44269504f;

PAGODA_INLINE bool AnyTrue(VecI mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)(mask.lo | mask.hi)) != 0;
#else
  int32_t any = 0;
  for (int i = 0; i < kLanes; ++i) any |= mask[i];
  return any != 0;
#endif
}
PAGODA_INLINE int32_t CountTrue(VecI mask) {
#if defined(__AVX512F__)
  return __builtin_popcount(_mm512_movepi32_mask((__m512i)mask));
#elif defined(__AVX2__)
  return __builtin_popcount(_mm256_movemask_ps((__m256)mask.lo)) +
         __builtin_popcount(_mm256_movemask_ps((__m256)mask.hi));
#else
  int32_t count = 0;
  for (int i = 0; i < kLanes; ++i) count -= mask[i];
  return count;
#endif
}

// Lanes of block `b`, vector `v`, that come before `end` or are it, in the order (logit descending,
// id ascending).
PAGODA_INLINE VecI InPlay(VecF z, VecI id, const RowCut& end) {
  return (z > Set1(end.z)) | ((z == Set1(end.z)) & (id <= end.id));
}
PAGODA_INLINE VecI Ids(int64_t block, int v) {
  return LaneIndex() + static_cast<int32_t>(block * kRowBlock + v * kLanes);
}
PAGODA_INLINE VecF Scaled(VecF z, const RowScale& scale) {
  return (z - Set1(scale.max)) * Set1(scale.inverse_temperature);
}

RowScan ScanRow(const float* const* blocks, int64_t num_blocks, float* block_max) {
  VecI nan = {};
  float max = -__builtin_inff();
  for (int64_t b = 0; b < num_blocks; ++b) {
    VecF v[kBlockVecs];
    for (int i = 0; i < kBlockVecs; ++i) {
      v[i] = Load(blocks[b] + i * kLanes);
      nan = nan | (v[i] != v[i]);
    }
    block_max[b] = ReduceMax(Max(Max(v[0], v[1]), Max(v[2], v[3])));
    max = block_max[b] > max ? block_max[b] : max;
  }
  return {max, AnyTrue(nan)};
}

RowMass SumExp(const RowView& row, const RowCut& end, const RowScale& scale) {
  RowMass mass;
  for (int64_t b = 0; b < row.num_blocks; ++b) {
    if (row.block_max[b] < end.z) continue;
    VecF sum = Zero();
    VecF weighted = Zero();
    for (int v = 0; v < kBlockVecs; ++v) {
      const VecF z = Load(row.blocks[b] + v * kLanes);
      const VecF s = Scaled(z, scale);
      const VecF p = Select(InPlay(z, Ids(b, v), end), Exp2(s * Set1(kLog2E)), Zero());
      sum = sum + p;
      // Where p is 0, s may be -inf.
      weighted = Select(p > Zero(), Fma(p, s, weighted), weighted);
    }
    mass.sum += static_cast<double>(ReduceAdd(sum));
    mass.weighted += static_cast<double>(ReduceAdd(weighted));
  }
  return mass;
}

PAGODA_INLINE VecI BinOf(VecF s, float center) {
  const VecF distance = AsF(AsU(s - Set1(center)) & 0x7fffffffu) * Set1(kBinsPerUnit);
  return ToInt(Min(Set1(static_cast<float>(kNumBins - 1)), distance));
}

void MassByBin(
    const RowView& row, const RowCut& end, const RowScale& scale, float center, double* mass) {
  for (int64_t b = 0; b < row.num_blocks; ++b) {
    if (row.block_max[b] < end.z) continue;
    for (int v = 0; v < kBlockVecs; ++v) {
      const VecF z = Load(row.blocks[b] + v * kLanes);
      const VecF s = Scaled(z, scale);
      const VecF p = Select(InPlay(z, Ids(b, v), end), Exp2(s * Set1(kLog2E)), Zero());
      const VecI bin = BinOf(s, center);
      for (int i = 0; i < kLanes; ++i) mass[bin[i]] += static_cast<double>(p[i]);
    }
  }
}

// Appends what is in play, has z >= least and (where bin >= 0) lies in that bin; no more than
// capacity.
int64_t CollectRow(const RowView& row,
                   const RowCut& end,
                   const RowScale& scale,
                   const RowFilter& filter,
                   int64_t capacity,
                   RowToken* out) {
  int64_t count = 0;
  for (int64_t b = 0; b < row.num_blocks; ++b) {
    if (row.block_max[b] < end.z || row.block_max[b] < filter.least) continue;
    for (int v = 0; v < kBlockVecs; ++v) {
      const VecF z = Load(row.blocks[b] + v * kLanes);
      const VecI id = Ids(b, v);
      VecI wanted = InPlay(z, id, end) & (z >= Set1(filter.least)) & (z > Set1(-__builtin_inff()));
      if (filter.bin >= 0) wanted = wanted & (BinOf(Scaled(z, scale), filter.center) == filter.bin);
      if (!AnyTrue(wanted)) continue;
      for (int i = 0; i < kLanes; ++i) {
        if (!wanted[i]) continue;
        if (count == capacity) return capacity + 1;
        out[count++] = {z[i], id[i]};
      }
    }
  }
  return count;
}

int64_t CountBefore(const RowView& row, const RowCut& token) {
  int64_t count = 0;
  for (int64_t b = 0; b < row.num_blocks; ++b) {
    if (row.block_max[b] < token.z) continue;
    for (int v = 0; v < kBlockVecs; ++v) {
      const VecF z = Load(row.blocks[b] + v * kLanes);
      count += CountTrue((z > Set1(token.z)) | ((z == Set1(token.z)) & (Ids(b, v) < token.id)));
    }
  }
  return count;
}

// Words of sixteen Philox blocks in the order of their tokens.
PAGODA_INLINE void TokenBits(const PhiloxVec& r, VecU (&bits)[kBlockVecs]) {
#if defined(__AVX512F__)
  const VecU a = __builtin_shufflevector(
      r.word[0], r.word[1], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const VecU b = __builtin_shufflevector(
      r.word[2], r.word[3], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const VecU c = __builtin_shufflevector(
      r.word[0], r.word[1], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  const VecU d = __builtin_shufflevector(
      r.word[2], r.word[3], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  bits[0] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23);
  bits[1] =
      __builtin_shufflevector(a, b, 8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30, 31);
  bits[2] = __builtin_shufflevector(c, d, 0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23);
  bits[3] =
      __builtin_shufflevector(c, d, 8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30, 31);
#else
  uint32_t words[kRowBlock];
  for (int i = 0; i < kRowBlock; ++i) words[i] = r.word[i % 4][i / 4];
  for (int v = 0; v < kBlockVecs; ++v) bits[v] = LoadAs<VecU>(words + v * kLanes);
#endif
}

// Gumbel-max as a race of exponentials: argmax(s + g) with g = -log(-log u) is argmin(-log u /
// e^s). As -log u >= 1 - u, a token can only win where (1 - u) / e^s is below the best so far,
// which costs no logarithm to know; a block where even the least 1 - u of all, 2^-24, cannot win
// costs nothing at all.
int32_t RaceRow(
    const RowView& row, const RowCut& end, const RowScale& scale, uint64_t seed, int64_t position) {
  float best = __builtin_inff();
  int32_t best_id = -1;
  float least_s = -__builtin_inff();
  for (int64_t b = 0; b < row.num_blocks; ++b) {
    if (row.block_max[b] < end.z) continue;
    if ((row.block_max[b] - scale.max) * scale.inverse_temperature < least_s) continue;
    const auto first = static_cast<uint32_t>(b * kRowBlock / 4);
    VecU bits[kBlockVecs];
    TokenBits(
        Philox<kNoiseRounds>(seed,
                             Set1U(static_cast<uint32_t>(position)),
                             Set1U(static_cast<uint32_t>(static_cast<uint64_t>(position) >> 32)),
                             (VecU)LaneIndex() + first,
                             VecU{}),
        bits);
    for (int v = 0; v < kBlockVecs; ++v) {
      const VecF z = Load(row.blocks[b] + v * kLanes);
      const VecI id = Ids(b, v);
      const VecF p = Select(InPlay(z, id, end), Exp2(Scaled(z, scale) * Set1(kLog2E)), Zero());
      const VecF u = Uniform(bits[v]);
      const VecI may_win = (p > Zero()) & (Set1(1.0f) - u < p * Set1(best));
      if (!AnyTrue(may_win)) continue;
      const VecF time = -Log(u) / p;
      for (int i = 0; i < kLanes; ++i) {
        if (may_win[i] && time[i] < best) {
          best = time[i];
          best_id = id[i];
        }
      }
      // 2^-24 < e^s * best.
      const float log_best = Log(Set1(best))[0];
      least_s = -16.64f - log_best;
    }
  }
  return best_id;
}

}  // namespace
}  // namespace pagoda::kernels::cpu
