#include <algorithm>

#include "kernels/cuda/cluster_launch.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/linear/gemm_output.cuh"
#include "kernels/cuda/linear/narrow.h"
#include "kernels/cuda/mma.cuh"

namespace pagoda::kernels::cuda {
namespace {

constexpr int kTileRows = 16;  // of the weight: one m of mma.m16n8k16
constexpr int kStepK = 16;     // and one k of it
constexpr int kStepBytes = kStepK * 2;
constexpr int kMmaWarps = 8;
constexpr int kMmaThreads = kMmaWarps * 32;
constexpr int kThreads = kMmaThreads + 32;  // and one warp that loads
constexpr int kMmaBarrier = 1;              // a named barrier
constexpr int kMaxStages = 24;
constexpr int kMinStages = 3;
// Rows in shared memory lie an odd number of 16 bytes apart, so that ldmatrix meets all banks.
constexpr int kRowPad = 16;
// Floats between tokens of a tile's sums: spreads a warp's stores over the banks.
constexpr int kSumStride = 20;

// Cluster c takes tiles c, c + num_clusters, ...; its blocks take equal parts of k.
struct NarrowSchedule {
  int num_tiles;
  int num_clusters;
  int split;
  int num_steps;   // of this product's k
  int rank_steps;  // of a block's part, but for the last one's
  int chunk_steps;
  int num_stages;
};

template <int kTokens>
struct Layout {
  static constexpr int kOutputs = kTileRows * kTokens;
  static constexpr int kOutputThreads = kMmaThreads / kOutputs;  // that share an output
  static_assert(kOutputThreads == 1 || kOutputThreads == 2);
  // Two of each alternate, so that one barrier a tile is enough.
  static constexpr int kSumBytes = 2 * kMmaWarps * kTokens * kSumStride * 4;
  static constexpr int kExchangeBytes = 2 * kOutputs * 4;
  static constexpr int kBarrierBytes = (2 * kMaxStages + 2) * 8;
  static constexpr int kFixedBytes = kSumBytes + kExchangeBytes + kBarrierBytes;

  static __host__ __device__ int InputStride(const NarrowSchedule& s) {
    return s.rank_steps * kStepBytes + kRowPad;
  }
  static __host__ __device__ int StageRowBytes(const NarrowSchedule& s) {
    return s.chunk_steps * kStepBytes + kRowPad;
  }
};

// ---- Barriers.

__device__ __forceinline__ void SyncMmaWarps() {
  asm volatile("bar.sync %0, %1;" ::"n"(kMmaBarrier), "n"(kMmaThreads) : "memory");
}
__device__ __forceinline__ void Arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
__device__ __forceinline__ uint32_t OfBlock(uint32_t shared, int rank) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared), "r"(rank));
  return remote;
}
// A value for another block of the cluster, and word of it: one arrival.
__device__ __forceinline__ void Send(uint32_t remote, float value, uint32_t remote_barrier) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(value) : "memory");
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
__device__ __forceinline__ void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
}
__device__ __forceinline__ void ClusterWait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
__device__ __forceinline__ int ClusterRank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// ---- A block's shared memory and part of the work.

struct Block {
  char* ring;
  char* input;
  float* sums;
  float* exchange;
  uint64_t* full;   // [kMaxStages]
  uint64_t* empty;  // [kMaxStages]
  uint64_t* ready;  // the cluster's sums of a tile are there
  int cluster;
  int rank;
  int first_step;
  int num_steps;
};

// Row of the weight at place `row` of a tile. Of a tile of pairs the first eight rows are first
// columns, the others their partners. -1: beyond the end.
__device__ __forceinline__ int WeightRow(const GemmArgs& a, int tile, int row) {
  if (a.output == OutputTransform::kNone) {
    const int n = tile * kTileRows + row;
    return n < a.n ? n : -1;
  }
  constexpr int kPairs = kTileRows / 2;
  const int pair = tile * kPairs + row % kPairs;
  if (2 * pair >= a.n) return -1;
  return PairColumn(a, pair) + row / kPairs * a.pair_distance;
}

// By one warp: lane r copies row r of every tile.
template <int kTokens>
__device__ __forceinline__ void Produce(const GemmArgs& a,
                                        const NarrowSchedule& s,
                                        const Block& b) {
  using L = Layout<kTokens>;
  const int lane = threadIdx.x & 31;
  const int row_bytes = L::StageRowBytes(s);
  const uint64_t policy = EvictFirstPolicy();
  int stage = 0;
  uint32_t parity = 1;  // the first round finds the ring empty
  for (int tile = b.cluster; tile < s.num_tiles; tile += s.num_clusters) {
    const int row = lane < kTileRows ? WeightRow(a, tile, lane) : -1;
    const int num_rows = __popc(__ballot_sync(kFullWarp, row >= 0));
    const char* source = static_cast<const char*>(a.weight) +
                         (int64_t{max(row, 0)} * s.num_steps + b.first_step) * kStepBytes;
    for (int step = 0; step < b.num_steps; step += s.chunk_steps) {
      const int bytes = min(s.chunk_steps, b.num_steps - step) * kStepBytes;
      BarrierWait(b.empty + stage, parity);
      if (lane == 0) BarrierExpect(b.full + stage, num_rows * bytes);
      __syncwarp();
      if (row >= 0) {
        BulkLoadOnce(b.ring + (stage * kTileRows + lane) * row_bytes,
                     source + step * kStepBytes,
                     bytes,
                     b.full + stage,
                     policy);
      }
      if (++stage == s.num_stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

// This block's part of x to shared memory, rows from a.m on zeros; by the mma warps. Ends with
// their barrier.
template <typename T, int kTokens>
__device__ __forceinline__ void StageTokens(const GemmArgs& a,
                                            const NarrowSchedule& s,
                                            const Block& b) {
  const int stride = Layout<kTokens>::InputStride(s);
  const int num_vectors = b.num_steps * 2;
  const T* x = static_cast<const T*>(a.x) + b.first_step * kStepK;
#pragma unroll 1
  for (int v = threadIdx.x; v < num_vectors; v += kMmaThreads) {
#pragma unroll
    for (int m = 0; m < kTokens; ++m) {
      AsyncCopy16(
          b.input + m * stride + v * 16, x + min(m, a.m - 1) * a.x_stride + v * kVector, m < a.m);
    }
  }
  AsyncCommit();
  AsyncWait<0>();
  SyncMmaWarps();
  if (a.transform != InputTransform::kRmsNorm) return;
  const int lane = threadIdx.x & 31;
  for (int m = threadIdx.x >> 5; m < a.m; m += kMmaWarps) {
    uint4* row = reinterpret_cast<uint4*>(b.input + m * stride);
    float sum = 0.0f;
#pragma unroll 4
    for (int v = lane; v < num_vectors; v += 32) {
      float f[kVector];
      Unpack8<T>(row[v], f);
#pragma unroll
      for (const float value : f) sum += value * value;
    }
    const float scale = rsqrtf(WarpSum(sum) / static_cast<float>(a.k) + a.norm_epsilon);
#pragma unroll 4
    for (int v = lane; v < num_vectors; v += 32) {
      const float4* w = reinterpret_cast<const float4*>(a.norm_weight) + 2 * v;
      const float4 lo = __ldg(w), hi = __ldg(w + 1);
      const float weight[kVector] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
      float f[kVector];
      Unpack8<T>(row[v], f);
#pragma unroll
      for (int i = 0; i < kVector; ++i) f[i] = f[i] * scale * (weight[i] + a.norm_offset);
      row[v] = Pack8<T>(f);
    }
  }
  SyncMmaWarps();
}

// Steps of k of one stage that are this warp's, in groups whose loads are under way at once.
template <typename T, int kTokens>
__device__ __forceinline__ void MeetStage(uint32_t weights,
                                          uint32_t input,
                                          int steps,
                                          float (&acc)[kTokens / 8][4]) {
  const auto meet = [&](int step) {
    uint32_t w[4];
    LoadMatrix4(w, weights + step * kStepBytes);
    if constexpr (kTokens == 8) {
      uint32_t x[2];
      LoadMatrix2(x, input + step * kStepBytes);
      Mma16x8x16<T>(acc[0], w, x[0], x[1]);
    } else {
      uint32_t x[4];
      LoadMatrix4(x, input + step * kStepBytes);
      Mma16x8x16<T>(acc[0], w, x[0], x[1]);
      Mma16x8x16<T>(acc[1], w, x[2], x[3]);
    }
  };
  constexpr int kUnroll = 4;
  int step = 0;
  for (; step + (kUnroll - 1) * kMmaWarps < steps; step += kUnroll * kMmaWarps) {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) meet(step + i * kMmaWarps);
  }
  for (; step < steps; step += kMmaWarps) meet(step);
}

template <typename T, int kTokens>
__device__ __forceinline__ void Consume(const GemmArgs& a,
                                        const NarrowSchedule& s,
                                        const Block& b) {
  using L = Layout<kTokens>;
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  const bool is_paired = a.output != OutputTransform::kNone;

  const int output = static_cast<int>(threadIdx.x) / L::kOutputThreads;
  const int tokens_of_rank = kTokens / s.split;
  const int token = output / kTileRows;
  const int row = output % kTileRows;
  const bool is_first = threadIdx.x % L::kOutputThreads == 0;
  const int owner = token / tokens_of_rank;
  const bool is_mine = is_first && owner == b.rank && token < a.m;
  const int which = row / (kTileRows / 2);
  RowPlace row_place;
  if (is_mine) row_place = FindRowPlace(a, token);

  StageTokens<T, kTokens>(a, s, b);

  // This lane's addresses for ldmatrix.
  const uint32_t weight_at = lane % 16 * L::StageRowBytes(s) + lane / 16 * 16 + warp * kStepBytes;
  const int input_token = kTokens == 8 ? lane % 8 : lane % 8 + lane / 16 * 8;
  const uint32_t input_at = SharedAddress(b.input) + input_token * L::InputStride(s) +
                            lane / 8 % 2 * 16 + warp * kStepBytes;
  const uint32_t ring = SharedAddress(b.ring);
  const int stage_bytes = kTileRows * L::StageRowBytes(s);

  int stage = 0;
  uint32_t parity = 0;
  int buffer = 0;
  uint32_t ready_parity = 0;
  for (int tile = b.cluster; tile < s.num_tiles; tile += s.num_clusters) {
    // Read before the sums are there.
    const int column = is_mine ? WeightRow(a, tile, row) : -1;
    const float addend = column >= 0 ? Addend<T>(a, token, column) : 0.0f;
    PairPlace place;
    if (is_paired && column >= 0) {
      place =
          FindPairPlace(a, row_place, token, tile * (kTileRows / 2) + row % (kTileRows / 2), which);
    }
    float acc[kTokens / 8][4] = {};
    for (int first = 0; first < b.num_steps; first += s.chunk_steps) {
      BarrierWait(b.full + stage, parity);
      MeetStage<T, kTokens>(ring + stage * stage_bytes + weight_at,
                            input_at + first * kStepBytes,
                            min(s.chunk_steps, b.num_steps - first) - warp,
                            acc);
      __syncwarp();  // all lanes have read the stage
      if (lane == 0) Arrive(b.empty + stage);
      if (++stage == s.num_stages) {
        stage = 0;
        parity ^= 1;
      }
    }

    // ---- Sums over the warps, then over the cluster.
    float* sums = b.sums + buffer * kMmaWarps * kTokens * kSumStride;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[(warp * kTokens + n * 8 + lane % 4 * 2 + i % 2) * kSumStride + lane / 4 + i / 2 * 8] =
            acc[n][i];
      }
    }
    SyncMmaWarps();
    constexpr int kWarpsOfThread = kMmaWarps / L::kOutputThreads;
    const int first_warp = static_cast<int>(threadIdx.x) % L::kOutputThreads * kWarpsOfThread;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarpsOfThread; ++w) {
      sum += sums[((first_warp + w) * kTokens + token) * kSumStride + row];
    }
    if constexpr (L::kOutputThreads == 2) sum += __shfl_xor_sync(kFullWarp, sum, 1);
    if (s.split > 1) {
      // Each block finishes some of the tokens.
      float* parts = b.exchange + buffer * L::kOutputs;
      const int in_rank = (token - owner * tokens_of_rank) * kTileRows + row;
      const int of_rank = tokens_of_rank * kTileRows;
      if (is_first) {
        Send(OfBlock(SharedAddress(parts + b.rank * of_rank + in_rank), owner),
             sum,
             OfBlock(SharedAddress(b.ready), owner));
      }
      WaitForCluster(SharedAddress(b.ready), ready_parity);
      ready_parity ^= 1;
      if (owner == b.rank) {
        sum = 0.0f;
        for (int rank = 0; rank < s.split; ++rank) sum += parts[rank * of_rank + in_rank];
      }
    }
    buffer ^= 1;
    sum += addend;
    if (is_paired) {
      // The other thread of a pair is of the same warp, and owns its output too.
      const float partner = __shfl_xor_sync(kFullWarp, sum, kTileRows / 2 * L::kOutputThreads);
      if (column >= 0) StorePair<T>(a, place, which, sum, partner);
    } else if (column >= 0) {
      StoreOutput<T>(a, token, column, sum);
    }
  }
}

template <typename T, int kTokens>
__global__ void __launch_bounds__(kThreads, 1)
    NarrowKernel(const __grid_constant__ GemmArgs a, const __grid_constant__ NarrowSchedule s) {
  using L = Layout<kTokens>;
  extern __shared__ __align__(128) char narrow_shared[];
  LaunchNext();
  Block b;
  b.ring = narrow_shared;
  b.input = b.ring + s.num_stages * kTileRows * L::StageRowBytes(s);
  b.sums = reinterpret_cast<float*>(b.input + kTokens * L::InputStride(s));
  b.exchange = b.sums + L::kSumBytes / 4;
  b.full = reinterpret_cast<uint64_t*>(b.exchange + L::kExchangeBytes / 4);
  b.empty = b.full + kMaxStages;
  b.ready = b.empty + kMaxStages;
  b.rank = s.split > 1 ? ClusterRank() : 0;
  b.cluster = static_cast<int>(blockIdx.x) / s.split;
  b.first_step = b.rank * s.rank_steps;
  b.num_steps = min(s.rank_steps, s.num_steps - b.first_step);
  if (threadIdx.x == kMmaThreads) {
    for (int i = 0; i < s.num_stages; ++i) {
      BarrierInit(b.full + i, 1);
      BarrierInit(b.empty + i, kMmaWarps);
    }
    BarrierInit(b.ready, L::kOutputs);
    BarrierInitFence();
  }
  __syncthreads();
  if (s.split > 1) ClusterArrive();
  if (threadIdx.x >= kMmaThreads) {
    Produce<kTokens>(a, s, b);
    __syncwarp();
    if (s.split > 1) ClusterWait();
    WaitForPrevious();
  } else {
    // The barriers of the cluster's other blocks are there.
    if (s.split > 1) ClusterWait();
    WaitForPrevious();
    Consume<T, kTokens>(a, s, b);
  }
  // No block leaves while another may send to it.
  if (s.split > 1) {
    ClusterArrive();
    ClusterWait();
  }
}

int CeilDiv(int a, int b) { return (a + b - 1) / b; }

template <int kTokens>
NarrowSchedule MakeSchedule(const DeviceContext& context,
                            const NarrowConfig& config,
                            const GemmArgs& a) {
  using L = Layout<kTokens>;
  NarrowSchedule s = {.num_tiles = CeilDiv(a.n, kTileRows),
                      .split = config.split,
                      .num_steps = a.k / kStepK,
                      .chunk_steps = config.chunk / kStepK};
  const int most = std::max(1, context.num_sms / config.split);
  // As few clusters as take the same number of rounds: all end together.
  s.num_clusters = CeilDiv(s.num_tiles, CeilDiv(s.num_tiles, most));
  s.rank_steps = CeilDiv(s.num_steps, config.split);
  const int available =
      context.max_block_shared_bytes - L::kFixedBytes - kTokens * L::InputStride(s);
  s.num_stages = std::min(available / (kTileRows * L::StageRowBytes(s)), kMaxStages);
  return s;
}

template <int kTokens>
bool Fits(const DeviceContext& context, const NarrowConfig& config, const GemmArgs& a) {
  const NarrowSchedule s = MakeSchedule<kTokens>(context, config, a);
  // Every block of a cluster has a part.
  return s.num_stages >= kMinStages && s.rank_steps * (s.split - 1) < s.num_steps;
}

template <typename T, int kTokens>
absl::Status LaunchNarrowRows(const DeviceContext& context,
                              const NarrowConfig& config,
                              const GemmArgs& a) {
  using L = Layout<kTokens>;
  const NarrowSchedule s = MakeSchedule<kTokens>(context, config, a);
  return LaunchClusters(
      context,
      {.kernel = "narrow_gemm",
       .grid = static_cast<unsigned>(s.num_clusters * s.split),
       .block = kThreads,
       .shared_bytes = static_cast<size_t>(s.num_stages * kTileRows * L::StageRowBytes(s) +
                                           kTokens * L::InputStride(s) + L::kFixedBytes)},
      s.split,
      NarrowKernel<T, kTokens>,
      a,
      s);
}

}  // namespace

bool NarrowFits(const DeviceContext& context, const NarrowConfig& config, const GemmArgs& a) {
  if (a.m < 1 || a.m > kMaxNarrowRows || a.k % kStepK != 0 || !GemmVectorAligned(a)) return false;
  if (config.chunk != 256 && config.chunk != 512 && config.chunk != 1024) return false;
  if (config.split != 1 && config.split != 2 && config.split != 4 && config.split != 8) {
    return false;
  }
  if (a.transform == InputTransform::kSiluMul) return false;
  if (a.transform == InputTransform::kRmsNorm && config.split != 1) return false;
  if (a.output != OutputTransform::kNone &&
      (a.pair_distance < 1 || a.n % (2 * a.pair_distance) != 0)) {
    return false;
  }
  return a.m <= 8 ? Fits<8>(context, config, a) : Fits<16>(context, config, a);
}

absl::Status LaunchNarrow(const DeviceContext& context,
                          const NarrowConfig& config,
                          DType dtype,
                          const GemmArgs& a) {
  return DispatchDType(dtype, "linear", [&]<typename T>() {
    if (a.m <= 8) return LaunchNarrowRows<T, 8>(context, config, a);
    return LaunchNarrowRows<T, 16>(context, config, a);
  });
}

}  // namespace pagoda::kernels::cuda
