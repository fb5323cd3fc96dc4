#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/collective/peer_exchange.cuh"
#include "kernels/cuda/collective/reduce.h"
#include "kernels/cuda/primitives.cuh"

// The reductions over peers' memory: one kernel, by the number of trips, with or without the norm
// that follows in a model.

namespace pagoda::kernels::cuda {

// ---- Vectors of 16 bytes as floats.

template <typename T>
struct Lanes {
  static constexpr int kCount = 8;
  static __device__ __forceinline__ void Unpack(const uint4& v, float (&f)[kCount]) {
    Unpack8<T>(v, f);
  }
  static __device__ __forceinline__ uint4 Pack(const float (&f)[kCount]) { return Pack8<T>(f); }
};
template <>
struct Lanes<float> {
  static constexpr int kCount = 4;
  static __device__ __forceinline__ void Unpack(const uint4& v, float (&f)[kCount]) {
    f[0] = __uint_as_float(v.x);
    f[1] = __uint_as_float(v.y);
    f[2] = __uint_as_float(v.z);
    f[3] = __uint_as_float(v.w);
  }
  static __device__ __forceinline__ uint4 Pack(const float (&f)[kCount]) {
    return {
        __float_as_uint(f[0]), __float_as_uint(f[1]), __float_as_uint(f[2]), __float_as_uint(f[3])};
  }
};

// Element by element, where a vector is cut short or not aligned.
template <typename T>
__device__ __noinline__ uint4 LoadPart(const T* p, int count) {
  constexpr int kCount = Lanes<T>::kCount;
  float f[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) f[i] = i < count ? ToFloat(p[i]) : 0.0f;
  return Lanes<T>::Pack(f);
}
template <typename T>
__device__ __noinline__ void StorePart(T* p, const uint4& v, int count) {
  constexpr int kCount = Lanes<T>::kCount;
  float f[kCount];
  Lanes<T>::Unpack(v, f);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i < count) p[i] = FromFloat<T>(f[i]);
  }
}

// A vector of a tile, of one thread. kWhole: all vectors are whole and aligned, so that arrays and
// slots have the same order; these kernels are issued from few multiprocessors, where the
// instructions for anything else would take longer than the data.
template <typename T, bool kWhole>
struct Piece {
  static constexpr int kCount = Lanes<T>::kCount;
  int vector;  // in the slots
  bool is_mine;

  __device__ __forceinline__ Piece(const ReduceArgs& a, int tile, int place)
      : vector(tile * a.tile_vectors + place),
        is_mine(place < a.tile_vectors && vector < a.num_vectors) {}
  __device__ __forceinline__ uint4 Load(const void* array) const {
    return static_cast<const uint4*>(array)[vector];
  }
  __device__ __forceinline__ void Store(void* array, const uint4& v) const {
    static_cast<uint4*>(array)[vector] = v;
  }
};

// Any alignment; the last vector of a tile may be cut short.
template <typename T>
struct Piece<T, false> {
  static constexpr int kCount = Lanes<T>::kCount;
  int vector;
  bool is_mine;
  int count;        // elements
  int64_t element;  // in the arrays

  __device__ __forceinline__ Piece(const ReduceArgs& a, int tile, int place)
      : vector(tile * a.tile_vectors + place) {
    element = tile * a.tile_count + place * kCount;
    const int64_t end = min((tile + 1) * a.tile_count, a.count);
    const int64_t left = place < a.tile_vectors ? end - element : 0;
    count = static_cast<int>(max(int64_t{0}, min(int64_t{kCount}, left)));
    is_mine = count > 0;
  }
  __device__ __forceinline__ uint4 Load(const void* array) const {
    return LoadPart<T>(static_cast<const T*>(array) + element, count);
  }
  __device__ __forceinline__ void Store(void* array, const uint4& v) const {
    StorePart<T>(static_cast<T*>(array) + element, v, count);
  }
};

// The slots of this epoch, of each rank.
template <int kRanks>
struct Slots {
  __device__ __forceinline__ Slots(const ReduceArgs& args, uint32_t epoch)
      : a(args), offset(epoch % 2 * args.view.reduce_parity_bytes) {}

  __device__ __forceinline__ uint4* At(int rank, int64_t vector) const {
    return reinterpret_cast<uint4*>(a.view.reduce_slots[rank] + offset) + vector;
  }
  // Sends to all other ranks.
  __device__ __forceinline__ void Push(int64_t vector, const uint4& v) const {
#pragma unroll
    for (int i = 1; i < kRanks; ++i) {
      // Each rank begins with another one.
      const int peer = (a.view.rank + i) % kRanks;
      if (peer < a.view.num_ranks && peer != a.view.rank) StoreSlot(At(peer, vector), v);
    }
  }
  // A vector that is sent to this rank; empties the slot.
  __device__ __forceinline__ uint4 Take(int64_t vector, int sender, Watch& watch, bool* ok) const {
    uint4* const slot = At(a.view.rank, vector);
    uint4 v = LoadSlot(slot);
    while (!IsComplete(v) && *ok) {
      if (watch.GivesUp(sender)) *ok = false;
      v = LoadSlot(slot);
    }
    *slot = EmptyVector();
    return v;
  }
  // What each rank has sent of a vector, or not yet; `own` for this one's. The looks are on their
  // way together when it returns.
  __device__ __forceinline__ void Look(int64_t vector,
                                       const uint4& own,
                                       uint4 (&got)[kRanks]) const {
#pragma unroll
    for (int r = 0; r < kRanks; ++r) {
      got[r] = own;
      if (r < a.view.num_ranks && r != a.view.rank) {
        got[r] = LoadSlot(At(a.view.rank, r * a.vectors_per_sender + vector));
      }
    }
  }
  // sum = every rank's, in order, once all have come; empties the slots.
  template <typename T>
  __device__ __forceinline__ void Add(int64_t vector,
                                      uint4 (&got)[kRanks],
                                      float (&sum)[Lanes<T>::kCount],
                                      Watch& watch,
                                      bool* ok) const {
    constexpr int kCount = Lanes<T>::kCount;
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[i] = 0.0f;
#pragma unroll
    for (int r = 0; r < kRanks; ++r) {
      if (r >= a.view.num_ranks) continue;
      if (r != a.view.rank) {
        uint4* const slot = At(a.view.rank, r * a.vectors_per_sender + vector);
        while (!IsComplete(got[r]) && *ok) {
          if (watch.GivesUp(r)) *ok = false;
          got[r] = LoadSlot(slot);
        }
        *slot = EmptyVector();
      }
      float f[kCount];
      Lanes<T>::Unpack(got[r], f);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sum[i] += f[i];
    }
  }

  const ReduceArgs& a;
  const uint64_t offset;
};

// What this thread has of a tile of x.
template <typename T, bool kWhole, int kVecs>
__device__ __forceinline__ void LoadTile(const ReduceArgs& a, int tile, uint4 (&v)[kVecs]) {
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const Piece<T, kWhole> piece(a, tile, threadIdx.x + i * blockDim.x);
    v[i] = {};
    if (piece.is_mine) v[i] = Sendable(piece.Load(a.x));
  }
}

// Sends what this thread has of a tile: to all, or each part to its owner.
template <typename T, bool kWhole, int kRanks, Shots kShots, int kVecs>
__device__ __forceinline__ void PushTile(const ReduceArgs& a,
                                         const Slots<kRanks>& slots,
                                         int tile,
                                         const uint4 (&v)[kVecs]) {
  const int rank = a.view.rank, num_ranks = a.view.num_ranks;
  const int64_t begin = rank * a.vectors_per_sender;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const Piece<T, kWhole> piece(a, tile, threadIdx.x + i * blockDim.x);
    if (!piece.is_mine) continue;
    if constexpr (kShots == Shots::kOne) {
      slots.Push(begin + piece.vector, v[i]);
    } else {
      const int owner = OwnerOf(piece.vector, num_ranks);
      if (owner == rank) continue;
      StoreSlot(slots.At(owner, begin + PlaceInPart(piece.vector, num_ranks)), v[i]);
    }
  }
}

template <typename T, bool kWhole>
__device__ __forceinline__ uint4 LoadResidual(const ReduceArgs& a, const Piece<T, kWhole>& piece) {
  return a.residual == nullptr ? uint4{} : piece.Load(a.residual);
}

// The sum of what `got` looked for and the residual, as it is stored.
template <typename T, int kRanks>
__device__ __forceinline__ uint4 AddPiece(const Slots<kRanks>& slots,
                                          int64_t slot,
                                          uint4 (&got)[kRanks],
                                          const uint4& residual,
                                          Watch& watch,
                                          bool* ok) {
  constexpr int kCount = Lanes<T>::kCount;
  float sum[kCount];
  slots.template Add<T>(slot, got, sum, watch, ok);
  if (slots.a.residual != nullptr) {
    float f[kCount];
    Lanes<T>::Unpack(residual, f);
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[i] += f[i];
  }
  return Lanes<T>::Pack(sum);
}

// Two-shot: adds what this rank owns of a tile, and sends the sums.
template <typename T, bool kWhole, int kRanks, int kVecs>
__device__ __forceinline__ void AddOwnParts(const ReduceArgs& a,
                                            const Slots<kRanks>& slots,
                                            int tile,
                                            const uint4 (&own)[kVecs],
                                            Watch& watch,
                                            bool* ok) {
  const int num_ranks = a.view.num_ranks;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const Piece<T, kWhole> piece(a, tile, threadIdx.x + i * blockDim.x);
    if (!piece.is_mine || OwnerOf(piece.vector, num_ranks) != a.view.rank) continue;
    const int64_t slot = PlaceInPart(piece.vector, num_ranks);
    uint4 got[kRanks];
    const uint4 residual = LoadResidual<T, kWhole>(a, piece);
    slots.Look(slot, own[i], got);
    const uint4 v = Sendable(AddPiece<T>(slots, slot, got, residual, watch, ok));
    if (!*ok) continue;
    slots.Push(a.first_sum + piece.vector, v);
    piece.Store(a.sum, v);
  }
}

// One-shot: v, what this thread has of a tile, becomes the sum over all ranks.
template <typename T, bool kWhole, int kRanks, int kVecs>
__device__ __forceinline__ void SumTile(const ReduceArgs& a,
                                        const Slots<kRanks>& slots,
                                        int tile,
                                        uint4 (&v)[kVecs],
                                        Watch& watch,
                                        bool* ok) {
  // All that is looked for is on its way before anything is waited for, where registers allow.
  constexpr int kAhead = kVecs * kRanks <= 4 ? kVecs : 1;
  uint4 got[kAhead][kRanks], residual[kAhead];
#pragma unroll
  for (int begin = 0; begin < kVecs; begin += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const Piece<T, kWhole> piece(a, tile, threadIdx.x + (begin + i) * blockDim.x);
      if (!piece.is_mine) continue;
      residual[i] = LoadResidual<T, kWhole>(a, piece);
      slots.Look(piece.vector, v[begin + i], got[i]);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const Piece<T, kWhole> piece(a, tile, threadIdx.x + (begin + i) * blockDim.x);
      if (!piece.is_mine) continue;
      v[begin + i] = AddPiece<T>(slots, piece.vector, got[i], residual[i], watch, ok);
      if (*ok) piece.Store(a.sum, v[begin + i]);
    }
  }
}

// Two-shot: the sums of a tile, of whoever added them.
template <typename T, bool kWhole, int kRanks, int kVecs>
__device__ __forceinline__ void TakeTile(const ReduceArgs& a,
                                         const Slots<kRanks>& slots,
                                         int tile,
                                         uint4 (&v)[kVecs],
                                         Watch& watch,
                                         bool* ok) {
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const Piece<T, kWhole> piece(a, tile, threadIdx.x + i * blockDim.x);
    if (!piece.is_mine) continue;
    const int owner = OwnerOf(piece.vector, a.view.num_ranks);
    if (owner == a.view.rank) {
      v[i] = piece.Load(a.sum);
      continue;
    }
    v[i] = slots.Take(a.first_sum + piece.vector, owner, watch, ok);
    if (*ok) piece.Store(a.sum, v[i]);
  }
}

template <typename T, bool kWhole, int kVecs>
struct NormWeights {
  static constexpr int kCount = Lanes<T>::kCount;
  float values[kVecs][kCount];

  __device__ __forceinline__ explicit NormWeights(const ReduceArgs& a) {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      const int place = threadIdx.x + i * blockDim.x;
      const float* const from = a.weight + place * kCount;
#pragma unroll
      for (int j = 0; j < kCount; j += 4) {
        float* const to = &values[i][j];
        if constexpr (kWhole) {
          float4 w = {};
          if (place < a.tile_vectors) w = __ldg(reinterpret_cast<const float4*>(from + j));
          to[0] = w.x, to[1] = w.y, to[2] = w.z, to[3] = w.w;
        } else {
          const int64_t left = a.tile_count - place * kCount - j;
          for (int k = 0; k < 4; ++k) to[k] = k < left ? __ldg(from + j + k) : 0.0f;
        }
      }
#pragma unroll
      for (float& w : values[i]) w += a.weight_offset;
    }
  }
};

// y = the norm of a row whose sums this block's threads hold. All threads of the block call it.
template <typename T, bool kWhole, int kVecs>
__device__ __forceinline__ void NormRow(const ReduceArgs& a,
                                        int row,
                                        const uint4 (&sums)[kVecs],
                                        const NormWeights<T, kWhole, kVecs>& weights,
                                        bool ok) {
  constexpr int kCount = Lanes<T>::kCount;
  __shared__ float scratch[32];
  float squares = 0.0f;
  float f[kVecs][kCount];
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    Lanes<T>::Unpack(sums[i], f[i]);
#pragma unroll
    for (const float value : f[i]) squares += value * value;
  }
  const float mean = BlockSum(squares, scratch) / static_cast<float>(a.tile_count);
  const float scale = rsqrtf(mean + a.epsilon);
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const Piece<T, kWhole> piece(a, row, threadIdx.x + i * blockDim.x);
    if (!piece.is_mine || !ok) continue;
#pragma unroll
    for (int j = 0; j < kCount; ++j) f[i][j] = f[i][j] * scale * weights.values[i][j];
    piece.Store(a.y, Lanes<T>::Pack(f[i]));
  }
  __syncthreads();  // the next row uses scratch again
}

struct NoWeights {
  __device__ __forceinline__ explicit NoWeights(const ReduceArgs&) {}
};

template <typename T, bool kWhole, int kRanks, Shots kShots, int kVecs, bool kHasNorm>
__global__ void __launch_bounds__(kMaxReduceThreads, ReduceBlocksPerSm(kRanks, kHasNorm))
    ReduceKernel(const __grid_constant__ ReduceArgs a) {
  LaunchNext();
  const std::conditional_t<kHasNorm, NormWeights<T, kWhole, kVecs>, NoWeights> weights(a);
  WaitForPrevious();
  // Three loads that are on their way together.
  uint32_t* const epochs = a.view.controls[a.view.rank]->epochs;
  const uint32_t epoch = LoadRelaxed(epochs + blockIdx.x);
  const uint32_t failure = LoadRelaxed(&a.view.controls[a.view.rank]->failure);
  uint4 first[kVecs];
  LoadTile<T, kWhole, kVecs>(a, blockIdx.x, first);
  bool ok = MayBegin(a.view, failure);
  const Slots<kRanks> slots(a, epoch);
  Watch watch(a.view);

  // All is sent before anything is waited for: blocks of different ranks never wait in a circle.
  uint4 v[kVecs];
  if (ok) PushTile<T, kWhole, kRanks, kShots, kVecs>(a, slots, blockIdx.x, first);
  for (int tile = blockIdx.x + gridDim.x; ok && tile < a.num_tiles; tile += gridDim.x) {
    LoadTile<T, kWhole, kVecs>(a, tile, v);
    PushTile<T, kWhole, kRanks, kShots, kVecs>(a, slots, tile, v);
  }
  if constexpr (kShots == Shots::kTwo) {
    AddOwnParts<T, kWhole, kRanks, kVecs>(a, slots, blockIdx.x, first, watch, &ok);
    for (int tile = blockIdx.x + gridDim.x; tile < a.num_tiles; tile += gridDim.x) {
      LoadTile<T, kWhole, kVecs>(a, tile, v);
      AddOwnParts<T, kWhole, kRanks, kVecs>(a, slots, tile, v, watch, &ok);
    }
  }
  for (int tile = blockIdx.x; tile < a.num_tiles; tile += gridDim.x) {
    if constexpr (kShots == Shots::kOne) {
      if (tile != blockIdx.x) LoadTile<T, kWhole, kVecs>(a, tile, first);
      SumTile<T, kWhole, kRanks, kVecs>(a, slots, tile, first, watch, &ok);
    } else {
      TakeTile<T, kWhole, kRanks, kVecs>(a, slots, tile, first, watch, &ok);
    }
    if constexpr (kHasNorm) NormRow<T, kWhole, kVecs>(a, tile, first, weights, ok);
  }
  // Every thread has read the epoch.
  __syncthreads();
  if (threadIdx.x == 0) epochs[blockIdx.x] = epoch + 1;
  if (blockIdx.x == 0) {
    for (int i = gridDim.x + threadIdx.x; i < kMaxReduceBlocks; i += blockDim.x) {
      epochs[i] = epoch + 1;
    }
  }
}

// ---- Instantiations: for two, four and eight ranks; any number between takes the next. What is
// not whole takes the last, which serves all.

template <typename T, bool kWhole, int kRanks, Shots kShots>
absl::Status LaunchShots(const DeviceContext& context,
                         const LaunchConfig& config,
                         int vectors_per_thread,
                         const ReduceArgs& args) {
  const auto launch = [&](auto kernel) { return Launch(config, context.stream, kernel, args); };
  if (args.weight == nullptr) return launch(&ReduceKernel<T, kWhole, kRanks, kShots, 1, false>);
  if (vectors_per_thread == 1) return launch(&ReduceKernel<T, kWhole, kRanks, kShots, 1, true>);
  if (vectors_per_thread == 2) return launch(&ReduceKernel<T, kWhole, kRanks, kShots, 2, true>);
  return launch(&ReduceKernel<T, kWhole, kRanks, kShots, 4, true>);
}

template <typename T, bool kWhole, int kRanks>
absl::Status LaunchRanks(const DeviceContext& context,
                         const LaunchConfig& config,
                         const ReduceLaunch& launch,
                         const ReduceArgs& args) {
  const int vectors = launch.grid.vectors_per_thread;
  if (launch.shots == Shots::kTwo) {
    return LaunchShots<T, kWhole, kRanks, Shots::kTwo>(context, config, vectors, args);
  }
  return LaunchShots<T, kWhole, kRanks, Shots::kOne>(context, config, vectors, args);
}

template <typename T>
absl::Status LaunchReduceOf(const DeviceContext& context,
                            const ReduceLaunch& launch,
                            const ReduceArgs& args) {
  const LaunchConfig config = {.kernel = "all_reduce",
                               .grid = dim3(launch.grid.num_blocks),
                               .block = dim3(launch.grid.num_threads),
                               .programmatic = launch.programmatic};
  if (!args.is_whole) return LaunchRanks<T, false, kMaxRanks>(context, config, launch, args);
  if (args.view.num_ranks <= 2) return LaunchRanks<T, true, 2>(context, config, launch, args);
  if (args.view.num_ranks <= 4) return LaunchRanks<T, true, 4>(context, config, launch, args);
  return LaunchRanks<T, true, kMaxRanks>(context, config, launch, args);
}

}  // namespace pagoda::kernels::cuda
