// The one inner product of this backend: rows of x against panels of kPanel16, in register tiles.
// Linear layers use it, and attention for both of its products. An output is one chain of fused
// multiply-adds over k, whatever the tile, so tiles can be chosen freely.
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd.h"

namespace pagoda::kernels::cpu {
namespace {

// A Dot says how one pair of k is multiplied: kAccs accumulators a panel, the form of x, the bytes
// of a panel's pair.

#if defined(__AVX512BF16__)
// bfloat16 weights, x rounded to bfloat16: vdpbf16ps takes a pair at a time.
struct DotBf16 {
  using X = uint16_t;
  static constexpr int kAccs = 1;
  static constexpr int64_t kPairBytes = 64;
  static constexpr int kMaxRows = 8;
  static constexpr int kTileAccs = 24;
  struct W {
    VecU v;
  };
  static PAGODA_INLINE W LoadW(const char* p) { return {LoadAs<VecU>(p)}; }
  static PAGODA_INLINE VecU LoadX(const X* x) {
    uint32_t pair;
    std::memcpy(&pair, x, 4);
    return (VecU)_mm512_set1_epi32(static_cast<int>(pair));
  }
  static PAGODA_INLINE void Step(VecF* acc, const W& w, VecU x) {
    acc[0] = (VecF)_mm512_dpbf16_ps((__m512)acc[0], (__m512bh)w.v, (__m512bh)x);
  }
  static PAGODA_INLINE VecF Finish(const VecF* acc) { return acc[0]; }
  static PAGODA_INLINE X ToX(float v) { return ToBf16(v); }
  static PAGODA_INLINE void StoreX(VecF v, X* out) {
    const __m256bh rounded = _mm512_cvtneps_pbh((__m512)v);
    std::memcpy(out, &rounded, 32);
  }
  // Stores and returns what was stored.
  static PAGODA_INLINE VecF StoreRounded(VecF v, X* out) {
    const __m256bh rounded = _mm512_cvtneps_pbh((__m512)v);
    std::memcpy(out, &rounded, 32);
    __m256i bits;
    std::memcpy(&bits, &rounded, 32);
    return AsF((VecU)_mm512_cvtepu16_epi32(bits) << 16);
  }
};
#else
// bfloat16 weights without the instruction: both halves are widened. x holds floats that are
// rounded to bfloat16, so that a model gives the same results up to the rounding of sums on every
// processor.
struct DotBf16 {
  using X = float;
  static constexpr int kAccs = 1;
  static constexpr int64_t kPairBytes = 64;
#if defined(__AVX512F__)
  static constexpr int kMaxRows = 8;
  static constexpr int kTileAccs = 16;
#else
  static constexpr int kMaxRows = 4;
  static constexpr int kTileAccs = 4;
#endif
  struct W {
    VecF even, odd;
  };
  static PAGODA_INLINE W LoadW(const char* p) {
    const VecU w = LoadAs<VecU>(p);
    return {AsF(w << 16), AsF(w & 0xffff0000u)};
  }
  static PAGODA_INLINE const X* LoadX(const X* x) { return x; }
  static PAGODA_INLINE void Step(VecF* acc, const W& w, const X* x) {
    acc[0] = Fma(w.odd, Set1(x[1]), acc[0]);
    acc[0] = Fma(w.even, Set1(x[0]), acc[0]);
  }
  static PAGODA_INLINE VecF Finish(const VecF* acc) { return acc[0]; }
  static PAGODA_INLINE X ToX(float v) { return FromBf16(ToBf16(v)); }
  static PAGODA_INLINE void StoreX(VecF v, X* out) { Store(AsF(RoundToBf16(v)), out); }
  static PAGODA_INLINE VecF StoreRounded(VecF v, X* out) {
    const VecF rounded = AsF(RoundToBf16(v));
    Store(rounded, out);
    return rounded;
  }
};
#endif

// float32 weights: the two k of a pair lie side by side, and have an accumulator each, added at the
// end.
struct DotF32 {
  using X = float;
  static constexpr int kAccs = 2;
  static constexpr int64_t kPairBytes = 128;
#if defined(__AVX512F__)
  static constexpr int kMaxRows = 8;
  static constexpr int kTileAccs = 24;
#else
  static constexpr int kMaxRows = 2;
  static constexpr int kTileAccs = 4;
#endif
  struct W {
    VecF lo, hi;
  };
  static PAGODA_INLINE W LoadW(const char* p) { return {LoadAs<VecF>(p), LoadAs<VecF>(p + 64)}; }
  static PAGODA_INLINE VecF LoadX(const X* x) {
    double pair;
    std::memcpy(&pair, x, 8);
#if defined(__AVX512F__)
    return (VecF)_mm512_set1_pd(pair);
#else
    typedef double Half __attribute__((vector_size(32)));
    const auto both = (VecF::Half)(pair - Half{});
    return {both, both};
#endif
  }
  static PAGODA_INLINE void Step(VecF* acc, const W& w, VecF x) {
    acc[0] = Fma(w.lo, x, acc[0]);
    acc[1] = Fma(w.hi, x, acc[1]);
  }
  static PAGODA_INLINE VecF Finish(const VecF* acc) {
    float lanes[2 * kLanes];
    Store(acc[0], lanes);
    Store(acc[1], lanes + kLanes);
    float sums[kLanes];
    for (int i = 0; i < kLanes; ++i) sums[i] = lanes[2 * i] + lanes[2 * i + 1];
    return Load(sums);
  }
  static PAGODA_INLINE X ToX(float v) { return v; }
  static PAGODA_INLINE void StoreX(VecF v, X* out) { Store(v, out); }
  static PAGODA_INLINE VecF StoreRounded(VecF v, X* out) {
    Store(v, out);
    return v;
  }
};

// Columns (panels) of a tile with kRows rows.
template <typename Dot>
constexpr int TileCols(int rows) {
  const int cols = Dot::kTileAccs / (rows * Dot::kAccs);
  return cols > 8 ? 8 : (cols < 1 ? 1 : cols);
}

// How far ahead a tile asks for its panels. Into the second-level cache, since the first is too
// small to keep what is fetched this early; 8 KiB in flight over all streams cover the latency of
// memory at the rate one core can draw (measured on Zen 4).
constexpr int64_t PrefetchBytes(int cols) { return 8192 / cols / 64 * 64; }

// acc[r][c] += x[r] . panel[c] over num_pairs pairs of k; with kPrefetch, what lies prefetch_bytes
// on is asked for.
template <typename Dot, int kRows, int kCols, bool kPrefetch>
PAGODA_INLINE void MultiplyTile(const typename Dot::X* x,
                                int64_t x_stride,
                                const char* const* panels,
                                int64_t num_pairs,
                                VecF (&acc)[kRows][kCols][Dot::kAccs],
                                int64_t prefetch_bytes = PrefetchBytes(kCols)) {
  constexpr int kIntoSecondLevel = 2;
  const char* p[kCols];
  for (int c = 0; c < kCols; ++c) p[c] = panels[c];
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    typename Dot::W w[kCols];
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) {
      w[c] = Dot::LoadW(p[c]);
      if constexpr (kPrefetch) {
        for (int64_t line = 0; line < Dot::kPairBytes; line += 64) {
          __builtin_prefetch(p[c] + prefetch_bytes + line, 0, kIntoSecondLevel);
        }
      }
      p[c] += Dot::kPairBytes;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const auto xr = Dot::LoadX(x + r * x_stride);
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) Dot::Step(acc[r][c], w[c], xr);
    }
    x += 2;
  }
}

// y of a row and a panel, with bias and residual.
__attribute__((noinline)) void StoreOutput(const LinearBlock& block,
                                           int64_t row,
                                           int64_t panel_idx,
                                           VecF y) {
  const int64_t column = panel_idx * kLanes;
  const int64_t count = block.n - column < kLanes ? block.n - column : kLanes;
  if (block.bias != nullptr) y = y + LoadPartial(block.bias + column, count);
  const int64_t at = row * block.y_stride + column;
  if (block.residual != nullptr) y = y + LoadPartial(block.residual + at, count);
  StorePartial(y, block.y + at, count);
}

template <typename Dot, int kRows, int kCols, bool kPrefetch>
PAGODA_INLINE void LinearTile(const LinearBlock& block,
                              int64_t row,
                              const int64_t (&panel_idx)[kCols],
                              int64_t prefetch_bytes) {
  using X = typename Dot::X;
  VecF acc[kRows][kCols][Dot::kAccs] = {};
  const int64_t panel_bytes = block.num_k_pairs * Dot::kPairBytes;
  const char* panels[kCols];
  for (int c = 0; c < kCols; ++c) {
    panels[c] = static_cast<const char*>(block.weight) + panel_idx[c] * panel_bytes;
  }
  const auto* x =
      reinterpret_cast<const X*>(static_cast<const char*>(block.x) + row * block.x_stride_bytes);
  MultiplyTile<Dot, kRows, kCols, kPrefetch>(
      x,
      block.x_stride_bytes / static_cast<int64_t>(sizeof(X)),
      panels,
      block.num_k_pairs,
      acc,
      prefetch_bytes == 0 ? PrefetchBytes(kCols) : prefetch_bytes);
  // Accumulators are indexed by constants alone, or GCC keeps them in memory through the whole loop
  // above.
  VecF y[kRows][kCols];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) y[r][c] = Dot::Finish(acc[r][c]);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kCols; ++c) StoreOutput(block, row + r, panel_idx[c], y[r][c]);
  }
}

// All panels of the block for kRows rows: several panels at once, each group of consecutive panels
// being one stream through memory, so that the processor's own prefetchers see few long streams.
template <typename Dot, int kRows, int kCols, bool kPrefetch>
void LinearRows(const LinearBlock& block,
                int64_t row,
                int64_t panel_begin,
                int64_t panel_end,
                int64_t prefetch_bytes) {
  const int64_t per_stream = (panel_end - panel_begin) / kCols;
  for (int64_t g = 0; g < per_stream; ++g) {
    int64_t panel_idx[kCols];
    for (int c = 0; c < kCols; ++c) panel_idx[c] = panel_begin + c * per_stream + g;
    LinearTile<Dot, kRows, kCols, kPrefetch>(block, row, panel_idx, prefetch_bytes);
  }
  if constexpr (kCols > 1) {
    LinearRows<Dot, kRows, kCols / 2, kPrefetch>(
        block, row, panel_begin + per_stream * kCols, panel_end, prefetch_bytes);
  }
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// bfloat16 weights under many rows on AVX2: widening a panel at every tile would take as many
// instructions as multiplying by it, so a panel is widened once, in the order in which
// DotBf16::Step takes it, and all rows pass over the floats.
constexpr int kWideRows = 6;

// [num_k_pairs][odd, even][16].
void WidenPanel(const char* panel, int64_t num_k_pairs, float* out) {
  for (int64_t pair = 0; pair < num_k_pairs; ++pair) {
    const DotBf16::W w = DotBf16::LoadW(panel + pair * DotBf16::kPairBytes);
    Store(w.odd, out + pair * 2 * kLanes);
    Store(w.even, out + pair * 2 * kLanes + kLanes);
  }
}

// The chain of MultiplyTile for one panel: kRows * 2 accumulators, one weight and one x fill the 16
// registers.
template <int kRows>
void WideTile(const LinearBlock& block, int64_t row, int64_t panel_idx, const float* wide) {
  const int64_t x_stride = block.x_stride_bytes / static_cast<int64_t>(sizeof(float));
  const float* x = static_cast<const float*>(block.x) + row * x_stride;
  __m256 acc[kRows][2];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
  for (int64_t pair = 0; pair < block.num_k_pairs; ++pair) {
#pragma GCC unroll 2
    for (int k = 1; k >= 0; --k) {
      const __m256 lo = _mm256_load_ps(wide), hi = _mm256_load_ps(wide + 8);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m256 xr = _mm256_broadcast_ss(x + r * x_stride + k);
        acc[r][0] = _mm256_fmadd_ps(lo, xr, acc[r][0]);
        acc[r][1] = _mm256_fmadd_ps(hi, xr, acc[r][1]);
      }
      wide += kLanes;
    }
    x += 2;
  }
  // As in LinearTile.
  VecF y[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) y[r] = {(VecF::Half)acc[r][0], (VecF::Half)acc[r][1]};
  for (int r = 0; r < kRows; ++r) StoreOutput(block, row + r, panel_idx, y[r]);
}

template <int kRows>
void WideFewRows(
    const LinearBlock& block, int64_t row, int64_t num_rows, int64_t panel_idx, const float* wide) {
  if (num_rows == kRows) {
    WideTile<kRows>(block, row, panel_idx, wide);
  } else if constexpr (kRows > 1) {
    WideFewRows<kRows - 1>(block, row, num_rows, panel_idx, wide);
  }
}

void LinearWide(const LinearBlock& block) {
  const int64_t panel_bytes = block.num_k_pairs * DotBf16::kPairBytes;
  for (int64_t panel = block.panel_begin; panel < block.panel_end; ++panel) {
    WidenPanel(static_cast<const char*>(block.weight) + panel * panel_bytes,
               block.num_k_pairs,
               block.wide_panel);
    int64_t row = 0;
    for (; row + kWideRows <= block.num_rows; row += kWideRows) {
      WideTile<kWideRows>(block, row, panel, block.wide_panel);
    }
    if (row < block.num_rows) {
      WideFewRows<kWideRows - 1>(block, row, block.num_rows - row, panel, block.wide_panel);
    }
  }
}
#endif

// Calls the instance of LinearRows for num_rows rows. prefetch_bytes 0: as far ahead as memory
// needs.
template <typename Dot, int kRows, bool kPrefetch>
void LinearFewRows(const LinearBlock& block,
                   int64_t row,
                   int64_t num_rows,
                   int64_t panel_begin,
                   int64_t panel_end,
                   int64_t prefetch_bytes) {
  if (num_rows == kRows) {
    LinearRows<Dot, kRows, TileCols<Dot>(kRows), kPrefetch>(
        block, row, panel_begin, panel_end, prefetch_bytes);
  } else if constexpr (kRows > 1) {
    LinearFewRows<Dot, kRows - 1, kPrefetch>(
        block, row, num_rows, panel_begin, panel_end, prefetch_bytes);
  }
}

template <typename Dot>
void LinearBlockOf(const LinearBlock& block) {
  constexpr int kRows = Dot::kMaxRows;
  if (block.num_rows <= kRows) {
    LinearFewRows<Dot, kRows, true>(
        block, 0, block.num_rows, block.panel_begin, block.panel_end, 0);
    return;
  }
  // Many rows: a tile's panels stay in the second-level cache while all rows pass. The first rows
  // bring them from memory; where few others follow, those ask for the next tile's meanwhile.
  constexpr int kCols = TileCols<Dot>(kRows);
  constexpr int64_t kFewPasses = 3;
  const int64_t panel_bytes = block.num_k_pairs * Dot::kPairBytes;
  const bool fetches_ahead = block.num_rows <= kFewPasses * kRows;
  for (int64_t panel = block.panel_begin; panel < block.panel_end; panel += kCols) {
    const int64_t end = panel + kCols < block.panel_end ? panel + kCols : block.panel_end;
    LinearFewRows<Dot, kRows, true>(block, 0, kRows, panel, end, 0);
    for (int64_t row = kRows; row < block.num_rows; row += kRows) {
      const int64_t left = block.num_rows - row < kRows ? block.num_rows - row : kRows;
      if (fetches_ahead) {
        LinearFewRows<Dot, kRows, true>(block, row, left, panel, end, (end - panel) * panel_bytes);
      } else {
        LinearFewRows<Dot, kRows, false>(block, row, left, panel, end, 0);
      }
    }
  }
}

void LinearBlockKernel(const LinearBlock& block, Element weight) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  if (weight == Element::kBFloat16 && block.num_rows >= kRowsWorthWidening) {
    return LinearWide(block);
  }
#endif
  weight == Element::kBFloat16 ? LinearBlockOf<DotBf16>(block) : LinearBlockOf<DotF32>(block);
}

template <typename Dot>
int64_t XRowBytesOf(int64_t k) {
  // Rows start on their own cache lines, apart from each other by an odd number of lines where rows
  // are long, so that a tile's rows do not compete for one set of the first-level cache.
  const int64_t bytes = (k + 1) / 2 * 2 * static_cast<int64_t>(sizeof(typename Dot::X));
  const int64_t lines = (bytes + 63) / 64;
  return (lines | 1) * 64;
}

int64_t XRowBytes(int64_t k, Element weight) {
  return weight == Element::kBFloat16 ? XRowBytesOf<DotBf16>(k) : XRowBytesOf<DotF32>(k);
}

template <typename Dot>
void PrepareXOf(const float* x, int64_t x_stride, int64_t num_rows, int64_t k, void* out) {
  using X = typename Dot::X;
  const int64_t stride = XRowBytesOf<Dot>(k) / static_cast<int64_t>(sizeof(X));
  for (int64_t r = 0; r < num_rows; ++r) {
    const float* from = x + r * x_stride;
    X* to = static_cast<X*>(out) + r * stride;
    int64_t i = 0;
    for (; i + kLanes <= k; i += kLanes) Dot::StoreX(Load(from + i), to + i);
    for (; i < k; ++i) to[i] = Dot::ToX(from[i]);
    if (k % 2 != 0) to[k] = X{};
  }
}

void PrepareX(
    const float* x, int64_t x_stride, int64_t num_rows, int64_t k, Element weight, void* out) {
  weight == Element::kBFloat16 ? PrepareXOf<DotBf16>(x, x_stride, num_rows, k, out)
                               : PrepareXOf<DotF32>(x, x_stride, num_rows, k, out);
}

}  // namespace
}  // namespace pagoda::kernels::cpu
