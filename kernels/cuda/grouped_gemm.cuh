#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device_context.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/primitives.cuh"
#include "kernels/ops/moe.h"

// GroupedLinear by tiles of kRows entries of one group and kCols outputs: rows of x are gathered by
// index straight into shared memory, so nothing is copied or padded for a group. The grid has as
// many tiles of entries as there could be for any routing; a block finds its group from the offsets
// and ends when it has none, so that a launch does not depend on data and can be recorded.

namespace pagoda::kernels::cuda {

// Place of a 16-byte chunk in its row of 128 bytes so that 8 rows at one chunk touch all banks.
__device__ __forceinline__ int Swizzled(int row, int chunk) { return chunk ^ (row & 7); }

// kRows is what one ldmatrix-fed row of tensor core products has, or more of them for prefill.
template <int kRows>
struct GroupedTile {
  static constexpr int kCols = kRows == 16 ? 64 : 128;
  static constexpr int kInner = 64;  // of k at a time: rows of 128 bytes, free of bank conflicts
  static constexpr int kStages = kRows == 16 ? 6 : 3;
  static constexpr int kWarps = 4;  // side by side over the columns
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kWarpCols = kCols / kWarps;
  static constexpr int kStageElements = (kRows + kCols) * kInner;
  static constexpr size_t kSharedBytes = size_t{kStages} * kStageElements * 2;
};

struct GroupedWork {
  int group = -1;  // none
  int begin = 0;   // entries
  int end = 0;
};

// The tile_idx-th tile of kRows entries, counted over groups in order. The same in all lanes.
template <int kRows>
__device__ __forceinline__ GroupedWork FindGroup(const int32_t* offsets,
                                                 int num_groups,
                                                 int tile_idx) {
  const int lane = threadIdx.x & 31;
  int before = 0;  // tiles of the groups before `base`
  for (int base = 0; base < num_groups; base += 32) {
    const int group = base + lane;
    const int begin = group < num_groups ? offsets[group] : 0;
    const int end = group < num_groups ? offsets[group + 1] : 0;
    const int tiles = (end - begin + kRows - 1) / kRows;
    int upto = tiles;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
      const int other = __shfl_up_sync(kFullWarp, upto, offset);
      if (lane >= offset) upto += other;
    }
    const uint32_t has = __ballot_sync(kFullWarp, before + upto > tile_idx);
    if (has != 0) {
      const int owner = __ffs(has) - 1;
      const int first_tile = before + __shfl_sync(kFullWarp, upto - tiles, owner);
      const int owner_begin = __shfl_sync(kFullWarp, begin, owner);
      const int owner_end = __shfl_sync(kFullWarp, end, owner);
      const int first = owner_begin + (tile_idx - first_tile) * kRows;
      return {base + owner, first, min(first + kRows, owner_end)};
    }
    before += __shfl_sync(kFullWarp, upto, 31);
  }
  return {};
}

template <typename T, int kRows>
__global__ void __launch_bounds__(GroupedTile<kRows>::kThreads)
    GroupedGemmKernel(const __grid_constant__ GroupedLinearParams p) {
  using Tile = GroupedTile<kRows>;
  constexpr int kChunks = Tile::kInner / 8;  // of 16 bytes in a row
  constexpr int kRowTiles = kRows / 16, kColTiles = Tile::kWarpCols / 8;
  extern __shared__ __align__(128) unsigned char shared_memory[];
  __shared__ int rows[kRows];
  T* const stages = reinterpret_cast<T*>(shared_memory);

  LaunchNext();
  WaitForPrevious();
  const GroupedWork work = FindGroup<kRows>(p.group_offsets, p.num_groups, blockIdx.y);
  if (work.group < 0) return;
  const int n = static_cast<int>(p.weight.n / p.num_groups), k = static_cast<int>(p.weight.k);
  const int num_rows = work.end - work.begin;
  const int first_col = blockIdx.x * Tile::kCols;
  for (int i = threadIdx.x; i < kRows; i += Tile::kThreads) {
    const int entry = work.begin + min(i, num_rows - 1);
    rows[i] = p.entry_rows == nullptr ? entry : p.entry_rows[entry];
  }
  __syncthreads();

  const T* const x = static_cast<const T*>(p.x);
  const T* const weight = static_cast<const T*>(p.weight.data) + int64_t{work.group} * n * k;
  const int num_steps = (k + Tile::kInner - 1) / Tile::kInner;
  // Rows of x, then rows of the weight; beyond k and n are zeros.
  const auto load = [&](int step) {
    T* const stage = stages + step % Tile::kStages * Tile::kStageElements;
    for (int i = threadIdx.x; i < (kRows + Tile::kCols) * kChunks; i += Tile::kThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      const int at = step * Tile::kInner + chunk * 8;
      const bool is_x = row < kRows;
      const int col = first_col + row - kRows;
      const bool valid = at < k && (is_x || col < n);
      const T* source = is_x ? x + rows[is_x ? row : 0] * p.x_stride + at
                             : weight + int64_t{min(col, n - 1)} * k + at;
      AsyncCopy16(stage + row * Tile::kInner + Swizzled(row, chunk) * 8, valid ? source : x, valid);
    }
  };

  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float acc[kRowTiles][kColTiles][4] = {};
#pragma unroll
  for (int s = 0; s < Tile::kStages - 1; ++s) {
    if (s < num_steps) load(s);
    AsyncCommit();
  }
  for (int step = 0; step < num_steps; ++step) {
    AsyncWait<Tile::kStages - 2>();
    __syncthreads();
    if (step + Tile::kStages - 1 < num_steps) load(step + Tile::kStages - 1);
    AsyncCommit();
    const T* const stage = stages + step % Tile::kStages * Tile::kStageElements;
    const T* const w = stage + (kRows + warp * Tile::kWarpCols) * Tile::kInner;
#pragma unroll
    for (int inner = 0; inner < kChunks; inner += 2) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        // Matrices: rows 0-7 and 8-15 of the first eight of k, then of the next eight.
        const int row = 16 * r + (lane & 15), chunk = inner + (lane >> 4);
        LoadMatrix4(a[r], SharedAddress(stage + row * Tile::kInner + Swizzled(row, chunk) * 8));
      }
#pragma unroll
      for (int c = 0; c < kColTiles; c += 2) {
        // Matrices: both halves of k of eight columns, then of the next eight.
        const int col = 8 * c + (lane & 7) + (lane >> 4) * 8, chunk = inner + ((lane >> 3) & 1);
        // Rows of the stage decide the swizzle; kRows and kWarpCols are multiples of 8.
        uint32_t b[4];
        LoadMatrix4(b, SharedAddress(w + col * Tile::kInner + Swizzled(col, chunk) * 8));
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          Mma16x8x16<T>(acc[r][c], a[r], b[0], b[1]);
          Mma16x8x16<T>(acc[r][c + 1], a[r], b[2], b[3]);
        }
      }
    }
  }
  AsyncWait<0>();

  T* const y = static_cast<T*>(p.y);
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int c = 0; c < kColTiles; ++c) {
      const int col = first_col + warp * Tile::kWarpCols + 8 * c + (lane & 3) * 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * r + (lane >> 2) + 8 * half;
        if (row >= num_rows || col >= n) continue;
        *reinterpret_cast<uint32_t*>(y + int64_t{work.begin + row} * n + col) =
            Pack2<T>(acc[r][c][2 * half], acc[r][c][2 * half + 1]);
      }
    }
  }
}

template <typename T, int kRows>
absl::Status LaunchGroupedTile(const DeviceContext& context, const GroupedLinearParams& p) {
  using Tile = GroupedTile<kRows>;
  const int64_t n = p.n();
  // Every group may end in a tile that is not full; no more tiles than entries.
  const int64_t most = std::min(
      p.num_entries, p.num_entries / kRows + std::min<int64_t>(p.num_groups, p.num_entries));
  return Launch(context,
                {.kernel = "grouped_gemm",
                 .grid = dim3(static_cast<unsigned>((n + Tile::kCols - 1) / Tile::kCols),
                              static_cast<unsigned>(most)),
                 .block = Tile::kThreads,
                 .shared_bytes = Tile::kSharedBytes},
                GroupedGemmKernel<T, kRows>,
                p);
}

// REQUIRES: k % 8 == 0, n even, rows of x and weight aligned to 16 bytes.
template <typename T>
absl::Status LaunchGroupedGemm(const DeviceContext& context, const GroupedLinearParams& p) {
  // With few entries a group the weights are what is waited for, and a small tile wastes least.
  constexpr int64_t kManyEntries = 32;
  if (p.num_entries >= kManyEntries * p.num_groups) return LaunchGroupedTile<T, 64>(context, p);
  return LaunchGroupedTile<T, 16>(context, p);
}

}  // namespace pagoda::kernels::cuda
