#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/attention/async_copy.cuh"
#include "kernels/cuda/cluster_launch.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/linear/gemm_output.cuh"
#include "kernels/cuda/linear/narrow_wgmma.cuh"
#include "kernels/cuda/linear/swapped.h"
#include "kernels/cuda/matrix_map.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr int kBoxRows = 128;  // of the weight, 64 for each of two warpgroups
constexpr int kChunkK = 64;    // k of a stage: 128 bytes of each row
constexpr int kBoxBytes = kBoxRows * kChunkK * 2;
constexpr int kConsumers = 256;
constexpr int kConsumerWarps = kConsumers / 32;
constexpr int kThreads = kConsumers + 32;  // and one warp that loads
constexpr int kMaxStages = 16;
constexpr int kConsumerBarrier = 1;  // a named barrier

// Cluster c takes tiles c, c + num_clusters, ...; its blocks take equal parts of each tile's k.
struct Schedule {
  int num_tiles;
  int num_chunks;  // of a tile
  int num_clusters;
  int split;
  int num_stages;
};

// Where things lie in shared memory, in bytes; the ring begins at 0.
template <int kTokens, int kBoxes>
struct Layout {
  static constexpr int kInputBytes = kTokens * kChunkK * 2;
  static constexpr int kStageBytes = kBoxes * kBoxBytes + kInputBytes;
  static_assert(kStageBytes % 1024 == 0);  // atoms of the swizzle
  static constexpr int kTileRows = kBoxes * kBoxRows;
  // Floats between rows of x in the exchange; + 4 spreads a warp's stores over the banks.
  static constexpr int kSumStride = kTileRows + 4;
  static constexpr int kSumBytes = kTokens * kSumStride * 4;
  static constexpr int kBarrierBytes = (2 * kMaxStages + 2) * 8;
  static constexpr int kSlackBytes = 1024;  // to align the ring
  static constexpr int kFixedBytes = kSumBytes + kBarrierBytes + kSlackBytes;
};

// ---- Between the blocks of a cluster.

__device__ __forceinline__ int ClusterRank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
}
__device__ __forceinline__ void ClusterWait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t OfBlock(uint32_t shared, int rank) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared), "r"(rank));
  return remote;
}
__device__ __forceinline__ void ArriveAt(uint32_t remote_barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote_barrier)
               : "memory");
}
__device__ __forceinline__ void WaitForCluster(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "retry:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra retry;\n"
      "finished:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ float4 LoadOfBlock(uint32_t remote) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(remote)
               : "memory");
  return v;
}

// A box that is read once: the L2 evicts it first.
__device__ __forceinline__ void CopyBoxOnce(uint32_t shared,
                                            const CUtensorMap* map,
                                            int column,
                                            int row,
                                            uint32_t barrier,
                                            uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
      "l"(map),
      "r"(column),
      "r"(row),
      "r"(barrier),
      "l"(policy)
      : "memory");
}

// ---- A block's addresses.

struct Places {
  uint32_t ring;
  uint32_t sums;
  uint32_t full;   // [kMaxStages]
  uint32_t empty;  // [kMaxStages]
  uint32_t ready;  // the cluster's sums of a tile are there
  uint32_t taken;  // the cluster has read this block's
};

// Row of the weight where box `box` of a tile begins; pairs that are half the weight apart lie in
// two boxes side by side.
template <int kBoxes>
__device__ __forceinline__ int BoxRow(const GemmArgs& a, int tile, int box) {
  if (kBoxes == 2 && a.output == OutputTransform::kSiluMul) {
    return box * a.pair_distance + tile * kBoxRows;
  }
  return tile * kBoxes * kBoxRows + box * kBoxRows;
}

template <int kTokens, int kBoxes>
__device__ __forceinline__ void Produce(const GemmArgs& a,
                                        const CUtensorMap* weight_map,
                                        const CUtensorMap* input_map,
                                        const Schedule& s,
                                        const Places& at,
                                        int cluster,
                                        int first_chunk,
                                        int end_chunk) {
  using L = Layout<kTokens, kBoxes>;
  struct Cursor {
    int tile, chunk;
  };
  const uint64_t policy = EvictFirstPolicy();
  const auto advance = [&](Cursor& c) {
    if (++c.chunk == end_chunk) c = {c.tile + s.num_clusters, first_chunk};
  };
  const auto load_weights = [&](const Cursor& c, int stage) {
    BarrierArriveExpect(at.full + stage * 8, L::kStageBytes);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      CopyBoxOnce(at.ring + stage * L::kStageBytes + box * kBoxBytes,
                  weight_map,
                  c.chunk * kChunkK,
                  BoxRow<kBoxes>(a, c.tile, box),
                  at.full + stage * 8,
                  policy);
    }
  };
  const auto load_input = [&](const Cursor& c, int stage) {
    CopyBox(at.ring + stage * L::kStageBytes + kBoxes * kBoxBytes,
            input_map,
            c.chunk * kChunkK,
            0,
            at.full + stage * 8);
  };
  Cursor weights = {cluster, first_chunk};
  int filled = 0;
  for (; filled < s.num_stages && weights.tile < s.num_tiles; ++filled) {
    load_weights(weights, filled);
    advance(weights);
  }
  WaitForPrevious();
  Cursor input = {cluster, first_chunk};
  for (int stage = 0; stage < filled; ++stage) {
    load_input(input, stage);
    advance(input);
  }
  int stage = 0;
  uint32_t parity = 0;
  while (weights.tile < s.num_tiles) {
    BarrierWait(at.empty + stage * 8, parity);
    load_weights(weights, stage);
    load_input(weights, stage);
    advance(weights);
    if (++stage == s.num_stages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// Sum over the cluster, in the order of its blocks, of four neighbouring columns.
template <int kSplit>
__device__ __forceinline__ void SumColumns(const Places& at, int float_index, float (&sum)[4]) {
  const uint32_t address = at.sums + float_index * 4;
  float4 parts[kSplit];
#pragma unroll
  for (int rank = 0; rank < kSplit; ++rank) parts[rank] = LoadOfBlock(OfBlock(address, rank));
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] = 0.0f;
#pragma unroll
  for (const float4& v : parts) {
    sum[0] += v.x;
    sum[1] += v.y;
    sum[2] += v.z;
    sum[3] += v.w;
  }
}

// This block's share of a tile's columns to y.
template <typename T, int kTokens, int kBoxes, int kSplit>
__device__ __forceinline__ void FinishColumns(const GemmArgs& a,
                                              const Places& at,
                                              int rank,
                                              int tile) {
  using L = Layout<kTokens, kBoxes>;
  const int vectors = L::kTileRows / 4 / kSplit;
  const bool packs = !a.y_is_float && a.y_stride % 4 == 0 && a.n % 4 == 0 &&
                     reinterpret_cast<uintptr_t>(a.y) % 8 == 0;
  for (int i = threadIdx.x; i < vectors * a.m; i += kConsumers) {
    const int token = i / vectors;
    const int in_tile = (rank * vectors + i % vectors) * 4;
    const int column = tile * L::kTileRows + in_tile;
    if (column >= a.n) continue;
    float sum[4];
    SumColumns<kSplit>(at, token * L::kSumStride + in_tile, sum);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (column + j < a.n) sum[j] += Addend<T>(a, token, column + j);
    }
    if (packs) {
      *reinterpret_cast<uint2*>(static_cast<T*>(a.y) + token * a.y_stride + column) = {
          Pack2<T>(sum[0], sum[1]), Pack2<T>(sum[2], sum[3])};
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (column + j < a.n) StoreOutput<T>(a, token, column + j, sum[j]);
      }
    }
  }
}

// The same for a tile of pairs.
template <typename T, int kTokens, int kBoxes, int kSplit>
__device__ __forceinline__ void FinishPairs(const GemmArgs& a,
                                            const Places& at,
                                            int rank,
                                            int tile) {
  using L = Layout<kTokens, kBoxes>;
  constexpr int kPairs = L::kTileRows / 2;
  const int vectors = kPairs / 4 / kSplit;
  const int distance = a.output == OutputTransform::kSiluMul ? kPairs : a.pair_distance;
  for (int i = threadIdx.x; i < vectors * a.m; i += kConsumers) {
    const int token = i / vectors;
    const int pair_in_tile = (rank * vectors + i % vectors) * 4;
    const int pair = tile * kPairs + pair_in_tile;
    if (2 * pair >= a.n) continue;
    // Four pairs do not cross the end of a head: half a head is a multiple of 4.
    const int in_tile = pair_in_tile + pair_in_tile / distance * distance;
    const RowPlace row = FindRowPlace(a, token);
    float first[4], second[4];
    SumColumns<kSplit>(at, token * L::kSumStride + in_tile, first);
    SumColumns<kSplit>(at, token * L::kSumStride + in_tile + distance, second);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (2 * (pair + j) >= a.n) break;
      const int column = PairColumn(a, pair + j);
      first[j] += Addend<T>(a, token, column);
      second[j] += Addend<T>(a, token, column + a.pair_distance);
      StorePair<T>(a, FindPairPlace(a, row, token, pair + j, 0), 0, first[j], second[j]);
      StorePair<T>(a, FindPairPlace(a, row, token, pair + j, 1), 1, second[j], first[j]);
    }
  }
}

template <typename T, int kTokens, int kBoxes, int kSplit>
__device__ __forceinline__ void FinishTile(const GemmArgs& a,
                                           const Places& at,
                                           int rank,
                                           int tile) {
  if (a.output == OutputTransform::kNone) {
    FinishColumns<T, kTokens, kBoxes, kSplit>(a, at, rank, tile);
  } else {
    FinishPairs<T, kTokens, kBoxes, kSplit>(a, at, rank, tile);
  }
}

template <typename T, int kTokens, int kBoxes>
__device__ __forceinline__ void Consume(const GemmArgs& a,
                                        const Schedule& s,
                                        const Places& at,
                                        float* sums,
                                        int cluster,
                                        int rank,
                                        int num_chunks) {
  using L = Layout<kTokens, kBoxes>;
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  const int group = warp >> 2;  // warpgroup: which half of a box
  float acc[kBoxes][kTokens / 2];
  int stage = 0;
  uint32_t parity = 0;
  uint32_t tile_parity = 0;
  bool is_first = true;
  for (int tile = cluster; tile < s.num_tiles; tile += s.num_clusters) {
    int previous = -1;
    for (int chunk = 0; chunk < num_chunks; ++chunk) {
      BarrierWait(at.full + stage * 8, parity);
      const uint32_t base = at.ring + stage * L::kStageBytes;
      const uint64_t input = WgmmaDescriptor(base + kBoxes * kBoxBytes, 0, 1024);
      WgmmaFence();
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        const uint64_t weights =
            WgmmaDescriptor(base + box * kBoxBytes + group * (kBoxBytes / 2), 0, 1024);
#pragma unroll
        for (int k = 0; k < kChunkK / 16; ++k) {
          NarrowWgmma<T, kTokens>::Add(
              acc[box], Advance(weights, k * 32), Advance(input, k * 32), chunk > 0 || k > 0);
        }
      }
      WgmmaCommit();
      WgmmaWait<1>();  // the chunk before has been read
      if (previous >= 0 && lane == 0) BarrierArrive(at.empty + previous * 8);
      previous = stage;
      if (++stage == s.num_stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    WgmmaWait<0>();
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) PinRegisters(acc[box]);
    if (lane == 0) BarrierArrive(at.empty + previous * 8);

    // ---- Sums to shared memory, once the tile before has been read there.
    if (!is_first) {
      if (s.split > 1) {
        WaitForCluster(at.taken, tile_parity ^ 1);
      } else {
        NamedBarrierSync(kConsumerBarrier, kConsumers);
      }
    }
    is_first = false;
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) {
        const int row = box * kBoxRows + group * 64 + (warp & 3) * 16 + lane / 4 + (i / 2 % 2) * 8;
        const int token = i / 4 * 8 + (lane % 4) * 2 + i % 2;
        sums[token * L::kSumStride + row] = acc[box][i];
      }
    }
    NamedBarrierSync(kConsumerBarrier, kConsumers);
    if (s.split > 1) {
      if (threadIdx.x < s.split) ArriveAt(OfBlock(at.ready, threadIdx.x));
      WaitForCluster(at.ready, tile_parity);
    }
    if (s.split == 1) {
      FinishTile<T, kTokens, kBoxes, 1>(a, at, rank, tile);
    } else if (s.split == 2) {
      FinishTile<T, kTokens, kBoxes, 2>(a, at, rank, tile);
    } else if (s.split == 4) {
      FinishTile<T, kTokens, kBoxes, 4>(a, at, rank, tile);
    } else {
      FinishTile<T, kTokens, kBoxes, 8>(a, at, rank, tile);
    }
    if (s.split > 1) {
      NamedBarrierSync(kConsumerBarrier, kConsumers);
      if (threadIdx.x < s.split) ArriveAt(OfBlock(at.taken, threadIdx.x));
    }
    tile_parity ^= 1;
  }
}

template <typename T, int kTokens, int kBoxes>
__global__ void __launch_bounds__(kThreads, kBoxes == 1 ? 2 : 1)
    SwappedKernel(const __grid_constant__ GemmArgs a,
                  const __grid_constant__ CUtensorMap weight_map,
                  const __grid_constant__ CUtensorMap input_map,
                  Schedule s) {
  using L = Layout<kTokens, kBoxes>;
  extern __shared__ __align__(128) uint8_t shared[];
  LaunchNext();
  const uint32_t start = SharedAddress(shared);
  const uint32_t ring = (start + 1023) / 1024 * 1024;
  const uint32_t sums = ring + s.num_stages * L::kStageBytes;
  const uint32_t barriers = sums + L::kSumBytes;
  const Places at = {.ring = ring,
                     .sums = sums,
                     .full = barriers,
                     .empty = barriers + kMaxStages * 8,
                     .ready = barriers + 2 * kMaxStages * 8,
                     .taken = barriers + (2 * kMaxStages + 1) * 8};
  const int rank = s.split > 1 ? ClusterRank() : 0;
  const int cluster = blockIdx.x / s.split;
  const int first_chunk = s.num_chunks * rank / s.split;
  const int end_chunk = s.num_chunks * (rank + 1) / s.split;
  if (threadIdx.x == 0) {
    for (int i = 0; i < s.num_stages; ++i) {
      BarrierInit(at.full + i * 8, 1);
      BarrierInit(at.empty + i * 8, kConsumerWarps);
    }
    BarrierInit(at.ready, s.split);
    BarrierInit(at.taken, s.split);
    FenceBarrierInit();
    FenceAsyncProxy();
  }
  __syncthreads();
  if (s.split > 1) ClusterArrive();
  if (threadIdx.x >= kConsumers) {
    if (threadIdx.x == kConsumers) {
      PrefetchTensorMap(&input_map);
      Produce<kTokens, kBoxes>(a, &weight_map, &input_map, s, at, cluster, first_chunk, end_chunk);
    }
    __syncwarp();
    if (s.split > 1) ClusterWait();
    WaitForPrevious();
  } else {
    // The barriers of the cluster's other blocks are there.
    if (s.split > 1) ClusterWait();
    WaitForPrevious();
    Consume<T, kTokens, kBoxes>(a,
                                s,
                                at,
                                reinterpret_cast<float*>(shared + (sums - start)),
                                cluster,
                                rank,
                                end_chunk - first_chunk);
  }
  // No block leaves while another may read its sums.
  if (s.split > 1) {
    ClusterArrive();
    ClusterWait();
  }
}

int TokenColumns(int m) { return m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : 64; }

int CeilDiv(int a, int b) { return (a + b - 1) / b; }

// Rows of the weight that a tile computes as output columns, pairs counted twice.
Schedule MakeSchedule(const DeviceContext& context,
                      const SwappedConfig& config,
                      const GemmArgs& a) {
  Schedule s = {.num_tiles = CeilDiv(a.n, config.tile_rows),
                .num_chunks = CeilDiv(a.k, kChunkK),
                .split = config.split};
  if (a.output == OutputTransform::kSiluMul) s.num_tiles = CeilDiv(a.pair_distance, kBoxRows);
  const int most = std::max(1, context.num_sms * config.blocks_per_sm / config.split);
  // As few clusters as take the same number of rounds: all end together.
  const int rounds = CeilDiv(s.num_tiles, most);
  s.num_clusters = CeilDiv(s.num_tiles, rounds);
  return s;
}

template <int kTokens, int kBoxes>
int NumStages(const DeviceContext& context, const SwappedConfig& config) {
  using L = Layout<kTokens, kBoxes>;
  // The runtime keeps 1 KB of each block for itself.
  constexpr int kReservedBytes = 1024;
  const int available =
      (context.max_block_shared_bytes + kReservedBytes) / config.blocks_per_sm - kReservedBytes;
  return std::min((available - L::kFixedBytes) / L::kStageBytes, kMaxStages);
}

template <typename T, int kTokens, int kBoxes>
absl::Status LaunchVariant(const DeviceContext& context,
                           const SwappedConfig& config,
                           const GemmArgs& a) {
  using L = Layout<kTokens, kBoxes>;
  Schedule s = MakeSchedule(context, config, a);
  s.num_stages = NumStages<kTokens, kBoxes>(context, config);
  PAGODA_ASSIGN_OR_RETURN(
      const CUtensorMap weight_map,
      MakeMatrixMap(
          {.data = a.weight, .dtype = kDTypeOf<T>, .rows = a.n, .columns = a.k, .row_stride = a.k},
          kBoxRows));
  PAGODA_ASSIGN_OR_RETURN(const CUtensorMap input_map,
                          MakeMatrixMap({.data = a.x,
                                         .dtype = kDTypeOf<T>,
                                         .rows = a.m,
                                         .columns = a.k,
                                         .row_stride = a.x_stride},
                                        kTokens));
  return LaunchClusters(
      context,
      {.kernel = "swapped_gemm",
       .grid = static_cast<unsigned>(s.num_clusters * s.split),
       .block = kThreads,
       .shared_bytes = static_cast<size_t>(s.num_stages) * L::kStageBytes + L::kFixedBytes},
      s.split,
      SwappedKernel<T, kTokens, kBoxes>,
      a,
      weight_map,
      input_map,
      s);
}

template <typename T, int kTokens>
absl::Status LaunchForTokens(const DeviceContext& context,
                             const SwappedConfig& config,
                             const GemmArgs& a) {
  if (config.tile_rows == 128) return LaunchVariant<T, kTokens, 1>(context, config, a);
  return LaunchVariant<T, kTokens, 2>(context, config, a);
}

}  // namespace

bool SwappedFits(const DeviceContext& context, const SwappedConfig& config, const GemmArgs& a) {
  if (a.m < 1 || a.m > kMaxSwappedRows || a.transform != InputTransform::kNone) return false;
  if (config.tile_rows != 128 && config.tile_rows != 256) return false;
  if (config.split != 1 && config.split != 2 && config.split != 4 && config.split != 8) {
    return false;
  }
  if (config.blocks_per_sm != 1 && (config.blocks_per_sm != 2 || config.tile_rows != 128)) {
    return false;
  }
  constexpr int kLeastStages = 2;
  const int stages = config.tile_rows == 128 ? NumStages<64, 1>(context, config)
                                             : NumStages<64, 2>(context, config);
  if (stages < kLeastStages) return false;
  if (CeilDiv(a.k, kChunkK) < config.split || !GemmVectorAligned(a)) return false;
  switch (a.output) {
    case OutputTransform::kNone:
      return true;
    case OutputTransform::kSiluMul:
      return config.tile_rows == 256;
    case OutputTransform::kRope:
      // Whole heads in a tile.
      return config.tile_rows % (2 * a.pair_distance) == 0 && a.pair_distance % 4 == 0;
  }
  return false;
}

bool SwappedIsBalanced(const DeviceContext& context,
                       const SwappedConfig& config,
                       const GemmArgs& a) {
  const Schedule s = MakeSchedule(context, config, a);
  const int blocks = s.num_clusters * s.split;
  return 2 * blocks >= context.num_sms && (config.split == 1 || s.num_clusters == s.num_tiles);
}

absl::Status LaunchSwapped(const DeviceContext& context,
                           const SwappedConfig& config,
                           DType dtype,
                           const GemmArgs& a) {
  return DispatchDType(dtype, "linear", [&]<typename T>() {
    switch (TokenColumns(a.m)) {
      case 8:
        return LaunchForTokens<T, 8>(context, config, a);
      case 16:
        return LaunchForTokens<T, 16>(context, config, a);
      case 32:
        return LaunchForTokens<T, 32>(context, config, a);
      default:
        return LaunchForTokens<T, 64>(context, config, a);
    }
  });
}

}  // namespace pagoda::kernels::cuda
