#pragma once

#include <cstdint>

#include "kernels/cuda/attention/prefill_work.cuh"

// Prefill, the simple version: mma.sync, keys and values by cp.async in two stages, one thread
// block of 8 warps for 128 packed rows. Every head size and block size; what the wgmma version is
// compared with.

namespace pagoda::kernels::cuda {

template <typename T, int kHeadDim, bool kExtras>
struct PrefillMmaTraits {
  using Element = T;
  static constexpr int kDim = kHeadDim;
  static constexpr bool kHasExtras = kExtras;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRows = kWarps * 16;
  static constexpr int kKeys = 64;
  static constexpr int kChunks = kHeadDim / 8;
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kMatrixBytes = kKeys * kRowBytes;
  static constexpr int kStages = 2;
  static constexpr int kSharedBytes = kRows * kRowBytes + kStages * 2 * kMatrixBytes;
};

namespace prefill_mma {

template <typename Traits>
__device__ __forceinline__ int Place(int row, int chunk) {
  return row * Traits::kRowBytes + SwizzledChunk<Traits::kChunks>(row, chunk) * 16;
}

template <typename Traits>
__device__ __forceinline__ void LoadQuery(const PrefillKernelParams& p,
                                          const PrefillWork& work,
                                          uint32_t shared) {
  using T = typename Traits::Element;
  for (int i = threadIdx.x; i < Traits::kRows * Traits::kChunks; i += Traits::kThreads) {
    const int row = i / Traits::kChunks;
    const int chunk = i % Traits::kChunks;
    const int token = row / p.group_size;
    const bool valid = token < work.num_tokens;
    const int head = work.kv_head * p.group_size + row - token * p.group_size;
    const T* q = static_cast<const T*>(p.q);
    if (valid) q += (work.first_row + token) * p.q_stride + head * Traits::kDim + chunk * 8;
    CpAsync16OrZero(shared + Place<Traits>(row, chunk), q, valid);
  }
}

template <typename Traits>
__device__ __forceinline__ void LoadKeysAndValues(const PrefillKernelParams& p,
                                                  const PrefillWork& work,
                                                  int tile,
                                                  uint32_t stage) {
  using T = typename Traits::Element;
  const int32_t* table = p.kv.block_tables + work.seq_idx * p.kv.block_table_stride;
  const T* head = static_cast<const T*>(p.kv.data) + work.kv_head * p.kv.head_stride;
  for (int i = threadIdx.x; i < Traits::kKeys * Traits::kChunks; i += Traits::kThreads) {
    const int row = i / Traits::kChunks;
    const int chunk = i % Traits::kChunks;
    const int token = tile * Traits::kKeys + row;
    // What nobody wrote must not reach the tensor cores (0 * NaN is NaN), nor may its table entry
    // be followed.
    const bool valid = token >= work.first_key && token < work.end_key;
    const T* k = head;
    if (valid) {
      const int block = p.kv.ClampBlock(table[token >> p.kv.block_size_log2]);
      k += block * p.kv.block_stride + (token & (p.kv.block_size - 1)) * Traits::kDim + chunk * 8;
    }
    const uint32_t place = stage + Place<Traits>(row, chunk);
    CpAsync16OrZero(place, k, valid);
    CpAsync16OrZero(place + Traits::kMatrixBytes, valid ? k + p.kv.v_offset : k, valid);
  }
}

// s = q k^T for a warp's 16 rows.
template <typename Traits>
__device__ __forceinline__ void Scores(float (&s)[Traits::kKeys / 2],
                                       uint32_t query,
                                       uint32_t keys,
                                       int warp_row) {
  const int lane = threadIdx.x % 32;
  const int q_row = warp_row + (lane & 15);
  const int k_row = (lane & 7) + ((lane >> 4) << 3);
#pragma unroll
  for (int i = 0; i < Traits::kKeys / 2; ++i) s[i] = 0.0f;
#pragma unroll
  for (int step = 0; step < Traits::kDim / 16; ++step) {
    uint32_t a[4];
    LoadMatrix4(a, query + Place<Traits>(q_row, 2 * step + (lane >> 4)));
#pragma unroll
    for (int n = 0; n < Traits::kKeys / 16; ++n) {
      uint32_t b[4];
      LoadMatrix4(b, keys + Place<Traits>(n * 16 + k_row, 2 * step + ((lane >> 3) & 1)));
      float(&left)[4] = *reinterpret_cast<float(*)[4]>(&s[8 * n]);
      float(&right)[4] = *reinterpret_cast<float(*)[4]>(&s[8 * n + 4]);
      Mma16x8x16<typename Traits::Element>(left, a[0], a[1], a[2], a[3], b[0], b[1]);
      Mma16x8x16<typename Traits::Element>(right, a[0], a[1], a[2], a[3], b[2], b[3]);
    }
  }
}

// out += p v for a warp's 16 rows.
template <typename Traits>
__device__ __forceinline__ void Accumulate(float (&out)[Traits::kDim / 2],
                                           const float (&s)[Traits::kKeys / 2],
                                           uint32_t values) {
  using T = typename Traits::Element;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < Traits::kKeys / 16; ++step) {
    const uint32_t a0 = Number<T>::Pack(s[8 * step], s[8 * step + 1]);
    const uint32_t a1 = Number<T>::Pack(s[8 * step + 2], s[8 * step + 3]);
    const uint32_t a2 = Number<T>::Pack(s[8 * step + 4], s[8 * step + 5]);
    const uint32_t a3 = Number<T>::Pack(s[8 * step + 6], s[8 * step + 7]);
    const int v_row = step * 16 + (lane & 15);
#pragma unroll
    for (int n = 0; n < Traits::kDim / 16; ++n) {
      uint32_t b[4];
      LoadMatrix4Transposed(b, values + Place<Traits>(v_row, 2 * n + (lane >> 4)));
      float(&left)[4] = *reinterpret_cast<float(*)[4]>(&out[8 * n]);
      float(&right)[4] = *reinterpret_cast<float(*)[4]>(&out[8 * n + 4]);
      Mma16x8x16<T>(left, a0, a1, a2, a3, b[0], b[1]);
      Mma16x8x16<T>(right, a0, a1, a2, a3, b[2], b[3]);
    }
  }
}

}  // namespace prefill_mma

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    PrefillMmaKernel(const __grid_constant__ PrefillKernelParams p) {
  using T = typename Traits::Element;
  extern __shared__ __align__(128) char shared[];
  const uint32_t query = SharedAddress(shared);
  const uint32_t ring = query + Traits::kRows * Traits::kRowBytes;
  const int warp_row = threadIdx.x / 32 * 16;
  const int lane = threadIdx.x % 32;
  WaitForPreviousKernel();
  AllowNextKernel();

  const int num_works = p.header->num_prefill_tiles * p.kv.num_kv_heads;
  const float scale = Traits::kHasExtras ? 1.0f : p.score.scale * kLog2E;
  for (int i = 0;; ++i) {
    const int index = PrefillWorkIndex(i);
    if (index >= num_works) break;
    const PrefillWork work = ReadPrefillWork(p, index);
    const RowPair rows = ReadRowPair<Traits::kHasExtras>(p, work, warp_row + lane / 4);
    const int tile_begin = work.first_key / Traits::kKeys;
    const int tile_end = (work.end_key + Traits::kKeys - 1) / Traits::kKeys;
    // Tiles in [whole_begin, whole_end) are seen in full by every row.
    const int window_end = p.score.window > 0 ? max(0, work.end_key - p.score.window) : 0;
    const int whole_begin = (window_end + Traits::kKeys - 1) / Traits::kKeys;
    const int whole_end = (work.first_position + 1) / Traits::kKeys;

    float out[Traits::kDim / 2];
#pragma unroll
    for (int j = 0; j < Traits::kDim / 2; ++j) out[j] = 0.0f;
    OnlineSoftmax softmax;
    softmax.Begin();

    prefill_mma::LoadQuery<Traits>(p, work, query);
    prefill_mma::LoadKeysAndValues<Traits>(p, work, tile_begin, ring);
    CpAsyncCommit();
    for (int tile = tile_begin; tile < tile_end; ++tile) {
      const uint32_t stage = ring + (tile - tile_begin) % 2 * 2 * Traits::kMatrixBytes;
      const uint32_t other = ring + (tile - tile_begin + 1) % 2 * 2 * Traits::kMatrixBytes;
      if (tile + 1 < tile_end) {
        prefill_mma::LoadKeysAndValues<Traits>(p, work, tile + 1, other);
      }
      CpAsyncCommit();
      CpAsyncWait<1>();
      __syncthreads();

      float s[Traits::kKeys / 2];
      float factor[2];
      prefill_mma::Scores<Traits>(s, query, stage, warp_row);
      if constexpr (Traits::kHasExtras) {
        ApplyScoreExtras(s, p.score, rows, tile * Traits::kKeys);
      }
      if (tile < whole_begin || tile >= whole_end) {
        MaskScores(s, p.score.window, rows, tile * Traits::kKeys);
      }
      softmax.Update<true>(s, scale, factor);
#pragma unroll
      for (int j = 0; j < Traits::kDim / 2; ++j) out[j] *= factor[(j % 4) / 2];
      prefill_mma::Accumulate<Traits>(out, s, stage + Traits::kMatrixBytes);
      __syncthreads();
    }

    const float factor[2] = {p.score.v_scale / softmax.Total(0),
                             p.score.v_scale / softmax.Total(1)};
    WriteOutputRows<T, Traits::kDim>(p, work, out, factor, warp_row, [&](int row, int chunk) {
      return shared + prefill_mma::Place<Traits>(row, chunk);
    });
    __syncthreads();
  }
}

}  // namespace pagoda::kernels::cuda
