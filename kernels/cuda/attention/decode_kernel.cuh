#pragma once

#include "kernels/cuda/attention/decode_loader.cuh"

// Decode: few query rows per sequence, all the time goes into reading K and V once.
//
// A thread block walks tiles of 64 tokens of one KV head; warp w owns tokens [16 w, 16 w + 16) of
// every tile, with its own softmax state and its own ring of cp.async stages, so that warps never
// wait for each other inside an item and the ring runs on across items. The query heads of a group
// are packed into the rows of one MMA tile.
//
//   S[rows x tokens] = Q K^T      A = Q (registers), B = K (ldmatrix)
//   O^T[d x rows]   += V^T P^T    A = V^T (ldmatrix.trans), B = P^T: exactly the registers that S
//   came in
//
// so that the second product's width is the real number of rows, 8 or 16, not 16 always.

namespace pagoda::kernels::cuda {

namespace decode {

// The query rows of one item and what one warp has gathered for them. Lane l holds rows l / 4 (+ 8)
// of Q, S and the softmax state, and of O^T the rows 2 (l % 4) + {0, 1} (+ 8).
template <typename Traits>
class WarpState {
 public:
  using T = typename Traits::Element;
  static constexpr int kSteps = Traits::kDim / 16;
  static constexpr int kBlocks = Traits::kBlocks;

  float out[kBlocks][kSteps][4];
  float maximum[kBlocks];
  float sum[kBlocks];

  __device__ __forceinline__ void Begin(
      const DecodeKernelParams& p, const ItemSpan& span, int row_tile, int kv_head, int lane) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      maximum[b] = -INFINITY;
      sum[b] = 0.0f;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) out[b][i][j] = 0.0f;
      }
      const int row = row_tile * Traits::kRows + b * 8 + lane / 4;
      const int token = row / p.group_size;
      const int head = kv_head * p.group_size + row - token * p.group_size;
      const bool valid = token < span.num_rows_of_seq;
      position_[b] = span.context_len - span.num_rows_of_seq + token;
      slope_[b] = 0.0f;
      if constexpr (Traits::kHasExtras) {
        if (p.score.alibi_slopes != nullptr && valid) slope_[b] = p.score.alibi_slopes[head];
      }
      const T* q = static_cast<const T*>(p.q) + (span.row_offset + token) * p.q_stride +
                   head * Traits::kDim + (lane % 4) * 2;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          // Not by the read-only path: the kernel ahead may have written q while this one was
          // already running.
          query_[b][i][half] =
              valid ? __ldcg(reinterpret_cast<const uint32_t*>(q + i * 16 + half * 8)) : 0u;
        }
      }
    }
  }

  // Takes in the 16 tokens beginning at `token`; `whole` when every row sees all of them.
  __device__ __forceinline__ void Add(
      const DecodeKernelParams& p, uint32_t stage, int token, bool whole, int lane) {
    // Rows of the four 8 x 8 matrices that ldmatrix takes, for K and V alike.
    const int row = (lane & 7) + ((lane >> 4) << 3);
    const int half = (lane >> 3) & 1;
    const uint32_t row_base = stage + row * Traits::kRowBytes;

    float s[2][4] = {};
    float s_odd[2][4] = {};  // a second chain of products: each waits for the one before it
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      uint32_t k[4];
      LoadMatrix4(k, row_base + SwizzledChunk<Traits::kChunks>(row, 2 * i + half) * 16);
      float(&to)[2][4] = i % 2 == 0 ? s : s_odd;
      const uint32_t a1 = kBlocks == 2 ? query_[kBlocks - 1][i][0] : 0;
      const uint32_t a3 = kBlocks == 2 ? query_[kBlocks - 1][i][1] : 0;
      Mma16x8x16<T>(to[0], query_[0][i][0], a1, query_[0][i][1], a3, k[0], k[1]);
      Mma16x8x16<T>(to[1], query_[0][i][0], a1, query_[0][i][1], a3, k[2], k[3]);
    }

    uint32_t probability[kBlocks][2];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      float score[4] = {s[0][2 * b] + s_odd[0][2 * b],
                        s[0][2 * b + 1] + s_odd[0][2 * b + 1],
                        s[1][2 * b] + s_odd[1][2 * b],
                        s[1][2 * b + 1] + s_odd[1][2 * b + 1]};
      Softmax(p, score, token, whole, b, lane);
      probability[b][0] = Number<T>::Pack(score[0], score[1]);
      probability[b][1] = Number<T>::Pack(score[2], score[3]);
    }

    const uint32_t v_base = row_base + Traits::kMatrixBytes;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      uint32_t v[4];
      LoadMatrix4Transposed(v, v_base + SwizzledChunk<Traits::kChunks>(row, 2 * i + half) * 16);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        Mma16x8x16<T>(out[b][i], v[0], v[1], v[2], v[3], probability[b][0], probability[b][1]);
      }
    }
  }

 private:
  // Scores of 4 tokens (0, 1, 8, 9 from 2 (lane % 4)) to probabilities relative to the running
  // maximum, in units of log 2.
  __device__ __forceinline__ void Softmax(
      const DecodeKernelParams& p, float (&score)[4], int token, bool whole, int b, int lane) {
    const int first = token + (lane % 4) * 2;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (Traits::kHasExtras) {
        float x = score[j] * p.score.scale;
        if (p.score.soft_cap > 0.0f) x = p.score.soft_cap * Tanh(x / p.score.soft_cap);
        const int key = first + (j / 2) * 8 + j % 2;
        score[j] = kLog2E * (x + slope_[b] * static_cast<float>(key - position_[b]));
      } else {
        score[j] *= p.score.scale * kLog2E;
      }
    }
    if (!whole) {
      const int last = position_[b];
      const int begin = p.score.window > 0 ? last - p.score.window + 1 : 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int key = first + (j / 2) * 8 + j % 2;
        if (key < begin || key > last) score[j] = -INFINITY;
      }
    }
    float high = fmaxf(fmaxf(score[0], score[1]), fmaxf(score[2], score[3]));
    high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 1));
    high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 2));
    if (__any_sync(0xffffffff, high > maximum[b])) Rescale(fmaxf(high, maximum[b]), b, lane);
    // No key seen yet: keep every difference -inf, not NaN.
    const float base = maximum[b] == -INFINITY ? 0.0f : maximum[b];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      score[j] = Exp2(score[j] - base);
      sum[b] += score[j];
    }
  }

  __device__ __forceinline__ void Rescale(float new_maximum, int b, int lane) {
    const float factor = maximum[b] == -INFINITY ? 0.0f : Exp2(maximum[b] - new_maximum);
    maximum[b] = new_maximum;
    sum[b] *= factor;
    // O^T has its rows in other lanes than the state.
    const float even = __shfl_sync(0xffffffff, factor, (lane % 4) * 8);
    const float odd = __shfl_sync(0xffffffff, factor, (lane % 4) * 8 + 4);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      out[b][i][0] *= even;
      out[b][i][1] *= odd;
      out[b][i][2] *= even;
      out[b][i][3] *= odd;
    }
  }

  uint32_t query_[kBlocks][kSteps][2];
  int position_[kBlocks];
  float slope_[kBlocks];
};

// The end of a piece: the block's warps merge, then the piece is written out, or left for the
// item's last block.
template <typename Traits>
class PieceWriter {
 public:
  using T = typename Traits::Element;

  struct Piece {
    int32_t row_tile;
    int32_t kv_head;
    int32_t first_cta;  // blocks that the item is cut among
    int32_t last_cta;
    bool begins_item;
  };

  __device__ __forceinline__ PieceWriter(const DecodeKernelParams& p, char* shared)
      : p_(p),
        merge_(reinterpret_cast<float*>(shared + Traits::kMergeOffset)),
        state_(reinterpret_cast<float2*>(shared + Traits::kStateOffset)) {}

  __device__ __forceinline__ void Write(WarpState<Traits>& warp_state,
                                        const Piece& piece,
                                        const ItemSpan& span) {
    const int rows =
        min(Traits::kRows, span.num_rows_of_seq * p_.group_size - piece.row_tile * Traits::kRows);
    MergeWarps(warp_state);
    const bool whole = piece.first_cta == piece.last_cta;
    const int slot = 2 * blockIdx.x + (piece.begins_item ? 1 : 0);
    for (int i = threadIdx.x; i < rows * kVectors; i += Traits::kThreads) {
      const int row = i / kVectors;
      const int column = i % kVectors * 4;
      const float2 total = RowState(row);
      float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
      for (int s = 0; s < Traits::kMergeSlots; ++s) {
        const float4 part = *reinterpret_cast<const float4*>(
            merge_ + (s * Traits::kRows + row) * Traits::kMergeStride + column);
        value.x += part.x;
        value.y += part.y;
        value.z += part.z;
        value.w += part.w;
      }
      if (whole) {
        WriteRow(piece, span, row, column, value, total.y);
      } else {
        const int64_t index = int64_t{slot} * Traits::kRows + row;
        __stcg(reinterpret_cast<float4*>(p_.partial_out + index * Traits::kDim + column), value);
        if (column == 0) __stcg(p_.partial_state + index, total);
      }
    }
    if (!whole && IsLast(piece)) MergePieces(piece, span, rows);
    // The next piece's first writer must not overtake this one's last reader.
    __syncthreads();
  }

 private:
  static constexpr int kVectors = Traits::kDim / 4;

  // Maximum and sum of a row over the block's warps.
  __device__ __forceinline__ float2 RowState(int row) const {
    float high = -INFINITY;
#pragma unroll
    for (int w = 0; w < Traits::kWarps; ++w) high = fmaxf(high, state_[w * Traits::kRows + row].x);
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < Traits::kWarps; ++w) {
      const float2 part = state_[w * Traits::kRows + row];
      sum += part.x == -INFINITY ? 0.0f : part.y * Exp2(part.x - high);
    }
    return make_float2(high, sum);
  }

  // Leaves each slot's outputs relative to the block's maximum; their sum is the block's output.
  __device__ __forceinline__ void MergeWarps(WarpState<Traits>& warp_state) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < Traits::kBlocks; ++b) {
      float sum = warp_state.sum[b];
      sum += __shfl_xor_sync(0xffffffff, sum, 1);
      sum += __shfl_xor_sync(0xffffffff, sum, 2);
      if (lane % 4 == 0) {
        state_[warp * Traits::kRows + b * 8 + lane / 4] = make_float2(warp_state.maximum[b], sum);
      }
    }
    __syncthreads();
#pragma unroll
    for (int b = 0; b < Traits::kBlocks; ++b) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int row = b * 8 + (lane % 4) * 2 + odd;
        const float own = state_[warp * Traits::kRows + row].x;
        const float factor = own == -INFINITY ? 0.0f : Exp2(own - RowState(row).x);
#pragma unroll
        for (int i = 0; i < WarpState<Traits>::kSteps; ++i) {
          warp_state.out[b][i][odd] *= factor;
          warp_state.out[b][i][odd + 2] *= factor;
        }
      }
    }
    if constexpr (Traits::kMergeSlots == Traits::kWarps) {
      Store<false>(warp_state, warp, lane);
    } else {
      if (warp >= Traits::kMergeSlots) Store<false>(warp_state, warp - Traits::kMergeSlots, lane);
      __syncthreads();
      if (warp < Traits::kMergeSlots) Store<true>(warp_state, warp, lane);
    }
    __syncthreads();
  }

  template <bool kAdd>
  __device__ __forceinline__ void Store(const WarpState<Traits>& warp_state, int slot, int lane) {
#pragma unroll
    for (int b = 0; b < Traits::kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < WarpState<Traits>::kSteps; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row = slot * Traits::kRows + b * 8 + (lane % 4) * 2 + j % 2;
          const int column = i * 16 + lane / 4 + (j / 2) * 8;
          float& place = merge_[row * Traits::kMergeStride + column];
          place = kAdd ? place + warp_state.out[b][i][j] : warp_state.out[b][i][j];
        }
      }
    }
  }

  __device__ __forceinline__ void WriteRow(const Piece& piece,
                                           const ItemSpan& span,
                                           int row,
                                           int column,
                                           float4 value,
                                           float sum) const {
    const int packed = piece.row_tile * Traits::kRows + row;
    const int token = packed / p_.group_size;
    const int head = piece.kv_head * p_.group_size + packed - token * p_.group_size;
    const float factor = sum > 0.0f ? p_.score.v_scale / sum : 0.0f;
    T* out = static_cast<T*>(p_.out) +
             (int64_t{span.row_offset + token} * p_.num_q_heads + head) * Traits::kDim + column;
    *reinterpret_cast<uint2*>(out) =
        make_uint2(Number<T>::Pack(value.x * factor, value.y * factor),
                   Number<T>::Pack(value.z * factor, value.w * factor));
  }

  // Whether this block is the last of the item's to arrive here; then it sees what the others
  // wrote.
  __device__ __forceinline__ bool IsLast(const Piece& piece) {
    __threadfence();
    __syncthreads();
    int last = 0;
    if (threadIdx.x == 0) {
      int32_t* ticket = p_.tickets + piece.first_cta;
      last = atomicAdd(ticket, 1) == piece.last_cta - piece.first_cta;
      if (last) *ticket = 0;  // for the next launch
    }
    last = __syncthreads_or(last);
    if (last) __threadfence();
    return last != 0;
  }

  __device__ __forceinline__ void MergePieces(const Piece& piece, const ItemSpan& span, int rows) {
    // One sequence of eight KV heads is cut into 33 pieces a head on 132 multiprocessors.
    constexpr int kFew = 8, kMany = 17;
    const int pieces = piece.last_cta - piece.first_cta + 1;
    if (pieces <= kFew) {
      MergePieces<kFew>(piece, span, rows, pieces);
    } else {
      MergePieces<kMany>(piece, span, rows, pieces);
    }
  }

  // Reads of kBatch pieces are in flight at once.
  template <int kBatch>
  __device__ __forceinline__ void MergePieces(const Piece& piece,
                                              const ItemSpan& span,
                                              int rows,
                                              int pieces) {
    for (int i = threadIdx.x; i < rows * kVectors; i += Traits::kThreads) {
      const int row = i / kVectors;
      const int column = i % kVectors * 4;
      float high = -INFINITY;
      float sum = 0.0f;
      float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (int first = 0; first < pieces; first += kBatch) {
        float4 part[kBatch];
        float2 state[kBatch];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          const int k = first + j;
          // The item begins in its first block's last piece and goes through the others' first.
          const int slot = 2 * (piece.first_cta + k) + (k == 0 ? 1 : 0);
          const int64_t index = int64_t{slot} * Traits::kRows + row;
          state[j] = make_float2(-INFINITY, 0.0f);
          part[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
          if (k < pieces) {
            state[j] = __ldcg(p_.partial_state + index);
            part[j] = __ldcg(
                reinterpret_cast<const float4*>(p_.partial_out + index * Traits::kDim + column));
          }
        }
        float new_high = high;
#pragma unroll
        for (int j = 0; j < kBatch; ++j) new_high = fmaxf(new_high, state[j].x);
        const float keep = high == -INFINITY ? 0.0f : Exp2(high - new_high);
        high = new_high;
        sum *= keep;
        value = make_float4(value.x * keep, value.y * keep, value.z * keep, value.w * keep);
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          const float factor = state[j].x == -INFINITY ? 0.0f : Exp2(state[j].x - high);
          sum += state[j].y * factor;
          value.x += part[j].x * factor;
          value.y += part[j].y * factor;
          value.z += part[j].z * factor;
          value.w += part[j].w * factor;
        }
      }
      WriteRow(piece, span, row, column, value, sum);
    }
  }

  const DecodeKernelParams& p_;
  float* merge_;
  float2* state_;
};

}  // namespace decode

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kCtas)
    DecodeKernel(const __grid_constant__ DecodeKernelParams p) {
  extern __shared__ __align__(128) char shared[];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const DecodeTask task = p.tasks[blockIdx.x];
  if (task.num_tiles == 0) {
    WaitForPreviousKernel();
    AllowNextKernel();
    return;
  }

  // Plan, tables and the cache of earlier steps are older than the kernel ahead: reading may begin
  // at once.
  const uint32_t ring = SharedAddress(shared) + warp * 2 * Traits::kMatrixBytes;
  decode::Loader<Traits> loader(p, task, ring, warp, lane);
#pragma unroll 1
  for (int i = 0; i < Traits::kRing; ++i) loader.Fill(i);
  WaitForPreviousKernel();
  AllowNextKernel();

  decode::PieceWriter<Traits> writer(p, shared);
  decode::Cursor cursor(task);
  int stage = 0;
  while (cursor.remaining > 0) {
    const int num_kv_heads = p.kv.num_kv_heads;
    const int row_tile = cursor.unit / num_kv_heads;
    const int kv_head = cursor.unit - row_tile * num_kv_heads;
    const decode::ItemSpan span = decode::ReadItemSpan<Traits::kRows>(p, cursor.seq, row_tile);
    // Tokens that all rows of the tile see.
    const int all_begin = p.score.window > 0 ? max(0, span.end_token - p.score.window) : 0;
    const int all_end =
        span.context_len - span.num_rows_of_seq + row_tile * Traits::kRows / p.group_size + 1;
    decode::WarpState<Traits> state;
    state.Begin(p, span, row_tile, kv_head, lane);

    const int tiles = cursor.PieceTiles();
    for (int i = 0; i < tiles; ++i) {
      const int token =
          (cursor.seq.first_tile + cursor.tile + i) * kKvTileTokens + warp * Traits::kWarpTokens;
      CpAsyncWait<Traits::kRing - 1>();
      __syncwarp();
      if (token + Traits::kWarpTokens > span.first_token && token < span.end_token) {
        const bool whole = token >= all_begin && token + Traits::kWarpTokens <= all_end;
        state.Add(p, ring + stage * Traits::kStageBytes, token, whole, lane);
      }
      __syncwarp();
      loader.Fill(stage);
      stage = stage + 1 == Traits::kRing ? 0 : stage + 1;
    }

    const bool begins = cursor.tile == 0;
    const bool ends = cursor.tile + tiles == cursor.seq.num_tiles;
    const int cta = static_cast<int>(blockIdx.x);
    const typename decode::PieceWriter<Traits>::Piece piece = {
        .row_tile = row_tile,
        .kv_head = kv_head,
        .first_cta = begins ? cta : task.head_first_cta,
        .last_cta = ends ? cta : (begins ? task.tail_last_cta : task.head_last_cta),
        .begins_item = begins,
    };
    writer.Write(state, piece, span);
    cursor.remaining -= tiles;
    cursor.NextItem(p.seqs, num_kv_heads);
  }
  CpAsyncWait<0>();
}

}  // namespace pagoda::kernels::cuda
