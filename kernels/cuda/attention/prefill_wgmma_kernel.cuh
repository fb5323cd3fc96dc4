#pragma once

#include <cstdint>

#include "kernels/cuda/attention/async_copy.cuh"
#include "kernels/cuda/attention/prefill_work.cuh"
#include "kernels/cuda/attention/wgmma.cuh"

// Prefill on Hopper: a persistent grid, one thread block of three warpgroups a multiprocessor.
//
//   producer   warp 0 lets the copy engine bring keys and values, a page a box, into rings of
//   stages; warp 1 brings the
//              next tile's queries. Both run ahead of the arithmetic, across tiles.
//   consumers  two warpgroups, 64 packed rows each. Within one, the scores of the next stage are
//   computed while the
//              softmax of this one runs; between the two, turns: one issues its products while the
//              other is in its softmax.
//
// Stages are taken from the last to the first, so that masked ones come first and the loop over
// whole ones is tight. Shared memory holds rows of 128 bytes (64 elements), swizzled by 128 bytes:
// head_dim / 64 such columns a matrix.

namespace pagoda::kernels::cuda {

template <typename T, int kHeadDim, bool kExtras>
struct PrefillWgmmaTraits {
  using Element = T;
  static constexpr int kDim = kHeadDim;
  static constexpr bool kHasExtras = kExtras;
  static constexpr int kRows = 128;
  static constexpr int kKeys = kHeadDim == 256 ? 64 : 128;  // of a stage
  static constexpr int kStages = kHeadDim == 64 ? 4 : 2;
  static constexpr int kQueryBuffers = kHeadDim == 256 ? 1 : 2;
  static constexpr int kThreads = 384;
  // 384 threads begin with 168 registers each: 128 * 40 + 256 * 232 is what there is.
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;

  static constexpr int kColumns = kHeadDim / 64;
  static constexpr int kQueryColumnBytes = kRows * 128;
  static constexpr int kQueryBytes = kColumns * kQueryColumnBytes;
  static constexpr int kColumnBytes = kKeys * 128;
  static constexpr int kMatrixBytes = kColumns * kColumnBytes;

  static constexpr int kKeysOffset = kQueryBuffers * kQueryBytes;
  static constexpr int kValuesOffset = kKeysOffset + kStages * kMatrixBytes;
  static constexpr int kWorkOffset = kValuesOffset + kStages * kMatrixBytes;
  static constexpr int kWorkBytes = 32;
  static constexpr int kBarrierOffset = kWorkOffset + kQueryBuffers * kWorkBytes;
  // Per query buffer: full, empty. Per stage, for keys and for values: full, empty. One of the
  // producer's own.
  static constexpr int kNumBarriers = 2 * kQueryBuffers + 4 * kStages + 1;
  // The swizzle wants atoms of 1,024 bytes aligned; the base may not be.
  static constexpr int kAlignment = 1024;
  static constexpr int kSharedBytes = kBarrierOffset + 8 * kNumBarriers + kAlignment;
  static_assert(sizeof(PrefillWork) <= kWorkBytes);
  static_assert(kSharedBytes <= 227 * 1024);
};

namespace prefill_wgmma {

// Named barriers.
inline constexpr int kTurn = 1;       // + warpgroup: its turn to issue products
inline constexpr int kGroupSync = 3;  // + warpgroup: its own four warps

template <typename Traits>
struct Shared {
  uint32_t base;

  __device__ __forceinline__ uint32_t Query(int buffer) const {
    return base + buffer * Traits::kQueryBytes;
  }
  __device__ __forceinline__ uint32_t Keys(int stage) const {
    return base + Traits::kKeysOffset + stage * Traits::kMatrixBytes;
  }
  __device__ __forceinline__ uint32_t Values(int stage) const {
    return base + Traits::kValuesOffset + stage * Traits::kMatrixBytes;
  }
  __device__ __forceinline__ uint32_t Barrier(int index) const {
    return base + Traits::kBarrierOffset + index * 8;
  }
  __device__ __forceinline__ uint32_t QueryFull(int buffer) const { return Barrier(2 * buffer); }
  __device__ __forceinline__ uint32_t QueryEmpty(int buffer) const {
    return Barrier(2 * buffer + 1);
  }
  __device__ __forceinline__ uint32_t KeysFull(int stage) const {
    return Barrier(kFirst + 4 * stage);
  }
  __device__ __forceinline__ uint32_t KeysEmpty(int stage) const {
    return Barrier(kFirst + 4 * stage + 1);
  }
  __device__ __forceinline__ uint32_t ValuesFull(int stage) const {
    return Barrier(kFirst + 4 * stage + 2);
  }
  __device__ __forceinline__ uint32_t ValuesEmpty(int stage) const {
    return Barrier(kFirst + 4 * stage + 3);
  }
  __device__ __forceinline__ uint32_t Partial() const { return Barrier(Traits::kNumBarriers - 1); }

  __device__ __forceinline__ void InitBarriers() const {
    constexpr int kConsumerWarps = 8;
    for (int i = 0; i < Traits::kQueryBuffers; ++i) {
      BarrierInit(QueryFull(i), 1);
      BarrierInit(QueryEmpty(i), kConsumerWarps);
    }
    for (int i = 0; i < Traits::kStages; ++i) {
      BarrierInit(KeysFull(i), 1);
      BarrierInit(KeysEmpty(i), kConsumerWarps);
      BarrierInit(ValuesFull(i), 1);
      BarrierInit(ValuesEmpty(i), kConsumerWarps);
    }
    BarrierInit(Partial(), 1);
    FenceBarrierInit();
  }

 private:
  static constexpr int kFirst = 2 * Traits::kQueryBuffers;
};

// A place in a ring of kCount, and the parity of its phase.
template <int kCount>
struct RingPosition {
  int index = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void Next() {
    if (++index == kCount) {
      index = 0;
      phase ^= 1;
    }
  }
};

// Rows of head_dim elements of the pool, as the tensor map counts them.
struct PoolRows {
  int32_t per_block;
  int32_t per_head;
  int32_t to_values;
  int32_t box_tokens_log2;  // a box: tokens of one block, at most 64
};

// The producer's first warp.
template <typename Traits>
class Copier {
 public:
  __device__ __forceinline__ Copier(const PrefillKernelParams& p,
                                    const CUtensorMap* map,
                                    const PoolRows& rows,
                                    const Shared<Traits>& shared)
      : p_(p), map_(map), rows_(rows), shared_(shared), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void Run(int num_works) {
    for (int i = 0;; ++i) {
      const int index = PrefillWorkIndex(i);
      if (index >= num_works) break;
      work_ = ReadPrefillWork(p_, index);
      table_ = p_.kv.block_tables + work_.seq_idx * p_.kv.block_table_stride;
      const int begin = work_.first_key / Traits::kKeys;
      int stage = (work_.end_key + Traits::kKeys - 1) / Traits::kKeys - 1;
      // Keys go one stage ahead of values, as the consumers want them; rows are looked up one stage
      // ahead of that.
      int row = FindRows(stage);
      int next_row = stage > begin ? FindRows(stage - 1) : 0;
      CopyKeys(stage, row);
      for (; stage > begin; --stage) {
        const int after_row = stage - 1 > begin ? FindRows(stage - 2) : 0;
        CopyKeys(stage - 1, next_row);
        CopyValues(stage, row);
        row = next_row;
        next_row = after_row;
      }
      CopyValues(stage, row);
    }
  }

 private:
  __device__ __forceinline__ int BoxTokens() const { return 1 << rows_.box_tokens_log2; }
  __device__ __forceinline__ int NumBoxes() const { return Traits::kKeys >> rows_.box_tokens_log2; }

  // Lane i's box of a stage: whether any of its tokens is wanted.
  __device__ __forceinline__ bool IsWanted(int stage) const {
    const int token = stage * Traits::kKeys + (lane_ << rows_.box_tokens_log2);
    return lane_ < NumBoxes() && token < work_.context_len && token + BoxTokens() > work_.first_key;
  }

  // Its first row in the pool, of K.
  __device__ __forceinline__ int FindRows(int stage) const {
    if (!IsWanted(stage)) return 0;
    const int token = stage * Traits::kKeys + (lane_ << rows_.box_tokens_log2);
    const int block = p_.kv.ClampBlock(table_[token >> p_.kv.block_size_log2]);
    return block * rows_.per_block + work_.kv_head * rows_.per_head +
           (token & (p_.kv.block_size - 1));
  }

  // Starts the copies of the wanted boxes; `barrier` waits for their bytes.
  __device__ __forceinline__ void CopyBoxes(uint32_t to,
                                            int row,
                                            uint32_t wanted,
                                            uint32_t barrier) {
    const int box_bytes = 128 << rows_.box_tokens_log2;
    if (lane_ == 0) {
      BarrierArriveExpect(barrier, __popc(wanted) * box_bytes * Traits::kColumns);
    }
    for (int box = 0; box < NumBoxes(); ++box) {
      const int box_row = __shfl_sync(0xffffffff, row, box);
      if (lane_ == 0 && (wanted >> box & 1) != 0) {
#pragma unroll
        for (int column = 0; column < Traits::kColumns; ++column) {
          CopyBox(to + column * Traits::kColumnBytes + box * box_bytes,
                  map_,
                  column * 64,
                  box_row,
                  barrier);
        }
      }
    }
    __syncwarp();
  }

  // Keys that no row sees may be anything: their scores are replaced.
  __device__ __forceinline__ void CopyKeys(int stage, int row) {
    const uint32_t wanted = __ballot_sync(0xffffffff, IsWanted(stage));
    BarrierWait(shared_.KeysEmpty(keys_.index), keys_.phase ^ 1);
    CopyBoxes(shared_.Keys(keys_.index), row, wanted, shared_.KeysFull(keys_.index));
    keys_.Next();
  }

  // Values that no row sees must be finite: 0 * NaN is NaN. Where a stage has such rows, this warp
  // waits for the copies, clears the rows and only then tells the consumers.
  __device__ __forceinline__ void CopyValues(int stage, int row) {
    const uint32_t wanted = __ballot_sync(0xffffffff, IsWanted(stage));
    const int first = stage * Traits::kKeys;
    const int valid_begin = max(0, work_.first_key - first);
    const int valid_end = min(Traits::kKeys, work_.context_len - first);
    const uint32_t full = shared_.ValuesFull(values_.index);
    const uint32_t to = shared_.Values(values_.index);
    BarrierWait(shared_.ValuesEmpty(values_.index), values_.phase ^ 1);
    if (valid_begin == 0 && valid_end == Traits::kKeys) {
      CopyBoxes(to, row + rows_.to_values, wanted, full);
    } else {
      CopyBoxes(to, row + rows_.to_values, wanted, shared_.Partial());
      BarrierWait(shared_.Partial(), partial_phase_);
      partial_phase_ ^= 1;
      for (int i = lane_; i < Traits::kKeys * 8 * Traits::kColumns; i += 32) {
        const int key = i / 8 % Traits::kKeys;
        if (key < valid_begin || key >= valid_end) StoreZeros(to + i * 16);
      }
      FenceAsyncProxy();
      __syncwarp();
      if (lane_ == 0) BarrierArrive(full);
    }
    values_.Next();
  }

  const PrefillKernelParams& p_;
  const CUtensorMap* map_;
  const PoolRows& rows_;
  const Shared<Traits>& shared_;
  int lane_;
  PrefillWork work_;
  const int32_t* table_ = nullptr;
  RingPosition<Traits::kStages> keys_;
  RingPosition<Traits::kStages> values_;
  uint32_t partial_phase_ = 0;
};

// Address of 16-byte chunk `chunk` of row `row` of a query tile (later the output's).
template <typename Traits>
__device__ __forceinline__ int QueryPlace(int row, int chunk) {
  return chunk / 8 * Traits::kQueryColumnBytes + row * 128 + ((chunk % 8) ^ (row & 7)) * 16;
}

// The producer's second warp.
template <typename Traits>
__device__ __forceinline__ void LoadQueries(const PrefillKernelParams& p,
                                            const Shared<Traits>& shared,
                                            char* memory,
                                            int num_works) {
  using T = typename Traits::Element;
  constexpr int kChunks = Traits::kDim / 8;
  const int lane = threadIdx.x % 32;
  RingPosition<Traits::kQueryBuffers> position;
  for (int i = 0;; ++i) {
    const int index = PrefillWorkIndex(i);
    if (index >= num_works) break;
    const PrefillWork work = ReadPrefillWork(p, index);
    const uint32_t to = shared.Query(position.index);
    BarrierWait(shared.QueryEmpty(position.index), position.phase ^ 1);
    if (lane == 0) {
      *reinterpret_cast<PrefillWork*>(memory + Traits::kWorkOffset +
                                      position.index * Traits::kWorkBytes) = work;
    }
#pragma unroll 4
    for (int j = lane; j < Traits::kRows * kChunks; j += 32) {
      const int row = j / kChunks;
      const int chunk = j % kChunks;
      const int token = row / p.group_size;
      const bool valid = token < work.num_tokens;
      const int head = work.kv_head * p.group_size + row - token * p.group_size;
      const T* q = static_cast<const T*>(p.q);
      if (valid) q += (work.first_row + token) * p.q_stride + head * Traits::kDim + chunk * 8;
      CpAsync16OrZero(to + QueryPlace<Traits>(row, chunk), q, valid);
    }
    CpAsyncCommit();
    CpAsyncWait<0>();
    FenceAsyncProxy();
    __syncwarp();
    if (lane == 0) BarrierArrive(shared.QueryFull(position.index));
    position.Next();
  }
}

// One consumer warpgroup.
template <typename Traits>
class Consumer {
 public:
  using T = typename Traits::Element;
  static constexpr int kScores = Traits::kKeys / 2;
  static constexpr int kOutputs = Traits::kDim / 2;

  __device__ __forceinline__
  Consumer(const PrefillKernelParams& p, const Shared<Traits>& shared, char* memory, int group)
      : p_(p), shared_(shared), memory_(memory), group_(group) {}

  __device__ __forceinline__ void Run(int num_works) {
    // The first turn is the first warpgroup's.
    if (group_ == 1) NamedBarrierArrive(kTurn, 256);
    RingPosition<Traits::kQueryBuffers> position;
    for (int i = 0; PrefillWorkIndex(i) < num_works; ++i) {
      BarrierWait(shared_.QueryFull(position.index), position.phase);
      RunTile(position.index);
      if (threadIdx.x % 32 == 0) BarrierArrive(shared_.QueryEmpty(position.index));
      position.Next();
    }
    if (group_ == 0) NamedBarrierSync(kTurn, 256);
  }

 private:
  __device__ __forceinline__ void RunTile(int buffer) {
    const PrefillWork work = *reinterpret_cast<const PrefillWork*>(memory_ + Traits::kWorkOffset +
                                                                   buffer * Traits::kWorkBytes);
    const int warp_row = group_ * 64 + threadIdx.x / 32 % 4 * 16;
    const RowPair rows = ReadRowPair<Traits::kHasExtras>(p_, work, warp_row + threadIdx.x % 32 / 4);
    const int begin = work.first_key / Traits::kKeys;
    int stage = (work.end_key + Traits::kKeys - 1) / Traits::kKeys - 1;
    // Stages in [whole_begin, whole_end) are seen in full by every row.
    const int window_end = p_.score.window > 0 ? max(0, work.end_key - p_.score.window) : 0;
    const int whole_begin = (window_end + Traits::kKeys - 1) / Traits::kKeys;
    const int whole_end = (work.first_position + 1) / Traits::kKeys;

    float out[kOutputs];
    uint32_t weights[kScores / 2];
    OnlineSoftmax softmax;
    softmax.Begin();
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) out[i] = 0.0f;
    query_ = WgmmaDescriptor(shared_.Query(buffer) + group_ * 64 * 128, 0, 1024);
    First(rows, stage, softmax, weights);
    for (--stage; stage >= max(begin, whole_end); --stage) {
      Step<true>(rows, stage, softmax, weights, out);
    }
    for (; stage >= max(begin, whole_begin); --stage) {
      Step<false>(rows, stage, softmax, weights, out);
    }
    for (; stage >= begin; --stage) Step<true>(rows, stage, softmax, weights, out);
    Last(weights, out);

    const float factor[2] = {p_.score.v_scale / softmax.Total(0),
                             p_.score.v_scale / softmax.Total(1)};
    // All four warps have read the queries: their rows become the outputs'.
    NamedBarrierSync(kGroupSync + group_, 128);
    char* memory = memory_ + buffer * Traits::kQueryBytes;
    WriteOutputRows<T, Traits::kDim>(p_, work, out, factor, warp_row, [&](int row, int chunk) {
      return memory + QueryPlace<Traits>(row, chunk);
    });
    __syncwarp();
  }

  // s = q k^T of the current stage of keys, not waited for.
  __device__ __forceinline__ void IssueScores(float (&s)[kScores]) {
    const uint64_t keys = WgmmaDescriptor(shared_.Keys(keys_.index), 0, 1024);
#pragma unroll
    for (int step = 0; step < Traits::kDim / 16; ++step) {
      const uint64_t a = Advance(query_, step / 4 * Traits::kQueryColumnBytes + step % 4 * 32);
      const uint64_t b = Advance(keys, step / 4 * Traits::kColumnBytes + step % 4 * 32);
      Wgmma<T, Traits::kKeys>::Shared(s, a, b, step > 0);
    }
    WgmmaCommit();
  }

  // out += weights v of the current stage of values, not waited for.
  __device__ __forceinline__ void IssueOutputs(const uint32_t (&weights)[kScores / 2],
                                               float (&out)[kOutputs]) {
    constexpr int kN = Traits::kDim < 128 ? Traits::kDim : 128;
    const uint64_t values =
        WgmmaDescriptor(shared_.Values(values_.index), Traits::kColumnBytes, 1024);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < Traits::kKeys / 16; ++step) {
#pragma unroll
      for (int part = 0; part < Traits::kDim / kN; ++part) {
        float(&to)[kN / 2] = *reinterpret_cast<float(*)[kN / 2]>(&out[part * kN / 2]);
        const uint64_t b =
            Advance(values, part * (kN / 64) * Traits::kColumnBytes + step * 16 * 128);
        Wgmma<T, kN>::Registers(to,
                                weights[4 * step],
                                weights[4 * step + 1],
                                weights[4 * step + 2],
                                weights[4 * step + 3],
                                b);
      }
    }
    WgmmaCommit();
  }

  __device__ __forceinline__ void ReleaseKeys() {
    if (threadIdx.x % 32 == 0) BarrierArrive(shared_.KeysEmpty(keys_.index));
    keys_.Next();
  }
  __device__ __forceinline__ void ReleaseValues(const RingPosition<Traits::kStages>& stage) {
    if (threadIdx.x % 32 == 0) BarrierArrive(shared_.ValuesEmpty(stage.index));
  }

  template <bool kMasked>
  __device__ __forceinline__ void Softmax(float (&s)[kScores],
                                          const RowPair& rows,
                                          int stage,
                                          OnlineSoftmax& softmax,
                                          float (&factor)[2]) {
    if constexpr (Traits::kHasExtras) ApplyScoreExtras(s, p_.score, rows, stage * Traits::kKeys);
    if constexpr (kMasked) MaskScores(s, p_.score.window, rows, stage * Traits::kKeys);
    const float scale = Traits::kHasExtras ? 1.0f : p_.score.scale * kLog2E;
    softmax.template Update<kMasked>(s, scale, factor);
  }

  static __device__ __forceinline__ void Pack(const float (&s)[kScores],
                                              uint32_t (&weights)[kScores / 2]) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) weights[i] = Number<T>::Pack(s[2 * i], s[2 * i + 1]);
  }

  __device__ __forceinline__ void First(const RowPair& rows,
                                        int stage,
                                        OnlineSoftmax& softmax,
                                        uint32_t (&weights)[kScores / 2]) {
    float s[kScores];
    BarrierWait(shared_.KeysFull(keys_.index), keys_.phase);
    WgmmaFence();
    IssueScores(s);
    WgmmaWait<0>();
    PinRegisters(s);
    ReleaseKeys();
    float factor[2];  // nothing to multiply yet
    Softmax<true>(s, rows, stage, softmax, factor);
    BarrierWait(shared_.ValuesFull(values_.index), values_.phase);
    Pack(s, weights);
  }

  // The scores of `stage`, and the outputs of the stage before, whose probabilities `weights` holds
  // and whose values are there.
  template <bool kMasked>
  __device__ __forceinline__ void Step(const RowPair& rows,
                                       int stage,
                                       OnlineSoftmax& softmax,
                                       uint32_t (&weights)[kScores / 2],
                                       float (&out)[kOutputs]) {
    float s[kScores];
    BarrierWait(shared_.KeysFull(keys_.index), keys_.phase);
    NamedBarrierSync(kTurn + group_, 256);
    PinRegisters(weights);
    PinRegisters(out);
    WgmmaFence();
    IssueScores(s);
    IssueOutputs(weights, out);
    NamedBarrierArrive(kTurn + 1 - group_, 256);
    WgmmaWait<1>();
    PinRegisters(s);
    ReleaseKeys();
    float factor[2];
    Softmax<kMasked>(s, rows, stage, softmax, factor);
    // The wait for the next values is due anyway; here its loop also keeps the assembler from
    // moving the wait for the outputs up, before the softmax that is to run meanwhile.
    PinRegisters(s);
    const RingPosition<Traits::kStages> done = values_;
    values_.Next();
    BarrierWait(shared_.ValuesFull(values_.index), values_.phase);
    WgmmaWait<0>();
    PinRegisters(out);
    PinRegisters(weights);
    ReleaseValues(done);
    Pack(s, weights);
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) out[i] *= factor[(i % 4) / 2];
  }

  __device__ __forceinline__ void Last(uint32_t (&weights)[kScores / 2], float (&out)[kOutputs]) {
    PinRegisters(weights);
    PinRegisters(out);
    IssueOutputs(weights, out);
    WgmmaWait<0>();
    PinRegisters(out);
    ReleaseValues(values_);
    values_.Next();
  }

  const PrefillKernelParams& p_;
  const Shared<Traits>& shared_;
  char* memory_;
  int group_;
  uint64_t query_ = 0;
  RingPosition<Traits::kStages> keys_;
  RingPosition<Traits::kStages> values_;
};

}  // namespace prefill_wgmma

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    PrefillWgmmaKernel(const __grid_constant__ PrefillKernelParams p,
                       const __grid_constant__ CUtensorMap map,
                       const __grid_constant__ prefill_wgmma::PoolRows rows) {
  extern __shared__ char unaligned[];
  const uint32_t unaligned_address = SharedAddress(unaligned);
  char* memory = unaligned + (-unaligned_address & (Traits::kAlignment - 1));
  const prefill_wgmma::Shared<Traits> shared{SharedAddress(memory)};
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&map);
    shared.InitBarriers();
  }
  WaitForPreviousKernel();
  AllowNextKernel();
  __syncthreads();

  const int num_works = p.header->num_prefill_tiles * p.kv.num_kv_heads;
  if (warpgroup == 0) {
    GiveRegisters<Traits::kProducerRegisters>();
    if (warp == 0) {
      prefill_wgmma::Copier<Traits>(p, &map, rows, shared).Run(num_works);
    } else if (warp == 1) {
      prefill_wgmma::LoadQueries<Traits>(p, shared, memory, num_works);
    }
  } else {
    TakeRegisters<Traits::kConsumerRegisters>();
    prefill_wgmma::Consumer<Traits>(p, shared, memory, warpgroup - 1).Run(num_works);
  }
}

}  // namespace pagoda::kernels::cuda
