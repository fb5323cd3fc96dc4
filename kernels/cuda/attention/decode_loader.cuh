#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/device.cuh"
#include "kernels/cuda/attention/kv_pages.cuh"

// What a block of the decode kernel works on, and how its tiles come into shared memory.

namespace pagoda::kernels::cuda {

struct DecodeKernelParams {
  const void* q = nullptr;
  int64_t q_stride = 0;
  void* out = nullptr;
  int32_t num_q_heads = 0;
  int32_t group_size = 0;
  KvPages kv;
  ScoreParams score;
  const DecodeTask* tasks = nullptr;
  const DecodeSeq* seqs = nullptr;
  // Workspace. Parts of cut items: two slots a block, [2 * grid][rows][head_dim], and maximum and
  // sum of each row.
  float* partial_out = nullptr;
  float2* partial_state = nullptr;
  int32_t* tickets = nullptr;  // [grid], 0 between launches
};

// kRowBlocks: blocks of 8 rows. kStages: tiles in flight. kMinCtas: thread blocks a multiprocessor
// must hold.
template <typename T, int kHeadDim, int kRowBlocks, int kStages, int kMinCtas, bool kExtras>
struct DecodeTraits {
  using Element = T;
  static constexpr int kDim = kHeadDim;
  static constexpr int kBlocks = kRowBlocks;
  static constexpr int kRing = kStages;
  static constexpr int kCtas = kMinCtas;
  static constexpr bool kHasExtras = kExtras;

  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kWarpTokens = kKvTileTokens / kWarps;
  static constexpr int kRows = kRowBlocks * 8;
  static constexpr int kChunks = kHeadDim / 8;
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kMatrixBytes =
      kWarpTokens * kRowBytes;  // K or V of one warp's part of a tile
  static constexpr int kStageBytes = kWarps * 2 * kMatrixBytes;
  // Q and the output stay in registers.
  static_assert(kHeadDim * kRowBlocks <= 256);

  // Where warps meet at the end of an item: each slot takes one warp's output. 4 to stride rows
  // apart in banks.
  static constexpr int kMergeSlots = kRowBlocks == 1 ? 4 : 2;
  static constexpr int kMergeStride = kHeadDim + 4;
  static constexpr int kMergeOffset = kStages * kStageBytes;
  static constexpr int kStateOffset = kMergeOffset + kMergeSlots * kRows * kMergeStride * 4;
  static constexpr int kSharedBytes =
      kStateOffset + kWarps * kRows * static_cast<int>(sizeof(float2));
  static_assert(kWarpTokens == 16);
  static_assert(kCtas * (kSharedBytes + 1024) <= 228 * 1024);
};

namespace decode {

// Position on the line of items that a block walks.
struct Cursor {
  DecodeSeq seq;
  int32_t seq_pos;
  int32_t unit;
  int32_t tile;       // of the item
  int32_t remaining;  // tiles, in all

  __device__ __forceinline__ explicit Cursor(const DecodeTask& task)
      : seq(task.seq),
        seq_pos(task.seq_pos),
        unit(task.unit),
        tile(task.tile),
        remaining(task.num_tiles) {}

  __device__ __forceinline__ int PieceTiles() const { return min(seq.num_tiles - tile, remaining); }

  // To the first tile of the next item.
  __device__ __forceinline__ void NextItem(const DecodeSeq* seqs, int num_kv_heads) {
    tile = 0;
    if (++unit == seq.num_row_tiles * num_kv_heads) {
      unit = 0;
      ++seq_pos;
      if (remaining > 0) seq = seqs[seq_pos];
    }
  }
};

// What the rows of an item may see.
struct ItemSpan {
  int32_t context_len;
  int32_t num_rows_of_seq;
  int32_t row_offset;
  int32_t first_token;  // first that any row of the tile sees
  int32_t end_token;    // one past the last that any row of the tile sees
};

template <int kRows>
__device__ __forceinline__ ItemSpan ReadItemSpan(const DecodeKernelParams& p,
                                                 const DecodeSeq& seq,
                                                 int row_tile) {
  ItemSpan span;
  span.row_offset = p.kv.row_offsets[seq.seq_idx];
  span.num_rows_of_seq = p.kv.row_offsets[seq.seq_idx + 1] - span.row_offset;
  span.context_len = p.kv.context_lens[seq.seq_idx];
  const int first_row = row_tile * kRows / p.group_size;
  const int last_row = min((row_tile * kRows + kRows - 1) / p.group_size, span.num_rows_of_seq - 1);
  const int base = span.context_len - span.num_rows_of_seq;
  span.end_token = base + last_row + 1;
  span.first_token = p.score.window > 0 ? max(0, base + first_row - p.score.window + 1) : 0;
  return span;
}

// Fills one warp's ring, ahead of the warp's own arithmetic and across items.
template <typename Traits>
class Loader {
 public:
  using T = typename Traits::Element;

  __device__ __forceinline__
  Loader(const DecodeKernelParams& p, const DecodeTask& task, uint32_t ring, int warp, int lane)
      : p_(p), cursor_(task), ring_(ring), warp_(warp), lane_(lane) {
    if (cursor_.remaining > 0) BeginItem();
  }

  // Starts the copies of the next tile into `stage` and commits them as one group; an empty group
  // at the end.
  __device__ __forceinline__ void Fill(int stage) {
    if (cursor_.remaining > 0) {
      FillTile(ring_ + stage * Traits::kStageBytes);
      --cursor_.remaining;
      if (++cursor_.tile == cursor_.seq.num_tiles) {
        cursor_.NextItem(p_.seqs, p_.kv.num_kv_heads);
        if (cursor_.remaining > 0) BeginItem();
      }
    }
    CpAsyncCommit();
  }

 private:
  // Ids of the blocks that hold this warp's part of the next 32 tiles, one a lane.
  __device__ __forceinline__ void FetchBlocks() {
    pages_tile_ = cursor_.tile;
    const int token = (cursor_.seq.first_tile + pages_tile_ + lane_) * kKvTileTokens +
                      warp_ * Traits::kWarpTokens;
    const int last = span_.end_token - 1;
    // Entries outside what is visible may hold anything.
    const int index = min(max(token, span_.first_token), last) >> p_.kv.block_size_log2;
    pages_ = table_[index];
  }

  __device__ __forceinline__ void BeginItem() {
    const int num_kv_heads = p_.kv.num_kv_heads;
    const int row_tile = cursor_.unit / num_kv_heads;
    const int kv_head = cursor_.unit - row_tile * num_kv_heads;
    table_ = p_.kv.block_tables + cursor_.seq.seq_idx * p_.kv.block_table_stride;
    span_ = ReadItemSpan<Traits::kRows>(p_, cursor_.seq, row_tile);
    head_data_ = static_cast<const T*>(p_.kv.data) + kv_head * p_.kv.head_stride;
    FetchBlocks();
  }

  __device__ __forceinline__ void FillTile(uint32_t stage) {
    if (cursor_.tile - pages_tile_ == 32) FetchBlocks();
    const int block = __shfl_sync(0xffffffff, pages_, cursor_.tile - pages_tile_);
    const int token =
        (cursor_.seq.first_tile + cursor_.tile) * kKvTileTokens + warp_ * Traits::kWarpTokens;
    if (token + Traits::kWarpTokens <= span_.first_token || token >= span_.end_token) return;
    // This step's own tokens are written by the kernel ahead of this one.
    if (token + Traits::kWarpTokens > span_.context_len - span_.num_rows_of_seq) {
      WaitForPreviousKernel();
    }
    const int slot = token & (p_.kv.block_size - 1);
    const T* k = head_data_ + p_.kv.ClampBlock(block) * p_.kv.block_stride + slot * Traits::kDim;
    if (token >= span_.first_token && token + Traits::kWarpTokens <= span_.end_token) {
      CopyAll(stage, k);
    } else {
      CopyVisible(stage, k, span_.first_token - token, span_.end_token - token);
    }
  }

  // Chunk `i` of this lane's, of kCopies: the warp's 16 rows lie one after another, so that its
  // place in them is the lane's and a constant.
  __device__ __forceinline__ uint32_t Place(int i) const {
    if constexpr (32 % Traits::kChunks == 0) {
      constexpr int kRowsPerCopy = 32 / Traits::kChunks;
      const int row = lane_ / Traits::kChunks;
      const int chunk = SwizzledChunk<Traits::kChunks>(row, lane_ % Traits::kChunks);
      return row * Traits::kRowBytes + i * kRowsPerCopy * Traits::kRowBytes +
             (chunk ^ (i * kRowsPerCopy % 8)) * 16;
    } else {
      const int linear = i * 32 + lane_;
      const int row = linear / Traits::kChunks;
      return row * Traits::kRowBytes +
             SwizzledChunk<Traits::kChunks>(row, linear % Traits::kChunks) * 16;
    }
  }

  __device__ __forceinline__ void CopyAll(uint32_t stage, const T* k) const {
    const char* from_k = reinterpret_cast<const char*>(k) + lane_ * 16;
    const char* from_v = from_k + p_.kv.v_offset * static_cast<int64_t>(sizeof(T));
#pragma unroll
    for (int i = 0; i < kCopies; ++i) CpAsync16(stage + Place(i), from_k + i * 512);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      CpAsync16(stage + Traits::kMatrixBytes + Place(i), from_v + i * 512);
    }
  }

  // Rows [begin, end) as they are, the others as zeros: what nobody wrote must not reach the tensor
  // cores, where 0 * NaN is NaN.
  __device__ __forceinline__ void CopyVisible(uint32_t stage,
                                              const T* k,
                                              int begin,
                                              int end) const {
#pragma unroll 1
    for (int linear = lane_; linear < kCopies * 32; linear += 32) {
      const int row = linear / Traits::kChunks;
      const uint32_t place = stage + row * Traits::kRowBytes +
                             SwizzledChunk<Traits::kChunks>(row, linear % Traits::kChunks) * 16;
      const bool valid = row >= begin && row < end;
      CpAsync16OrZero(place, k + linear * 8, valid);
      CpAsync16OrZero(place + Traits::kMatrixBytes, k + p_.kv.v_offset + linear * 8, valid);
    }
  }

  static constexpr int kCopies = Traits::kWarpTokens * Traits::kChunks / 32;
  static_assert(Traits::kWarpTokens * Traits::kChunks % 32 == 0);

  const DecodeKernelParams& p_;
  Cursor cursor_;
  uint32_t ring_;
  int warp_;
  int lane_;
  ItemSpan span_;
  const int32_t* table_ = nullptr;
  const T* head_data_ = nullptr;
  int32_t pages_ = 0;
  int32_t pages_tile_ = 0;
};

}  // namespace decode

}  // namespace pagoda::kernels::cuda
