#include <algorithm>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/linear/gemm_device.cuh"
#include "kernels/cuda/linear/skinny.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr int kTileN = 128;  // weight rows of a tile
constexpr int kChunkK = 64;  // k of a stage: 128 bytes of each row
constexpr int kChunkVectors = kChunkK / kVector;
constexpr int kThreads = 256;  // 4 groups of 32 weight rows x 2 halves of a chunk
constexpr int kTileStride =
    kTileN + 4;  // floats of a row of the output tile; + 4 spreads its rows over the banks

// Work is cut into units of (tile, k chunk), tiles outermost; block b takes units [b * total /
// blocks, (b + 1) * ...): every block streams the same share of the weight, whatever the shape
// ("stream-K").
struct Schedule {
  int num_tiles;
  int num_chunks;  // of a tile
  int num_blocks;

  // Fewer than 2^31: SkinnyFits.
  __host__ __device__ int total() const { return num_tiles * num_chunks; }
  __host__ __device__ int Begin(int block) const {
    return static_cast<int>(int64_t{total()} * block / num_blocks);
  }
  // The block that takes a unit.
  __host__ __device__ int Owner(int unit) const {
    return static_cast<int>(((int64_t{unit} + 1) * num_blocks - 1) / total());
  }
};

// A unit of a block's share and the stage it goes through, counted up without divisions.
struct Cursor {
  int unit;
  int tile;
  int chunk;
  int stage;

  __device__ void Advance(const Schedule& schedule, int num_stages) {
    ++unit;
    if (++chunk == schedule.num_chunks) {
      chunk = 0;
      ++tile;
    }
    if (++stage == num_stages) stage = 0;
  }
};

template <typename T>
__device__ __forceinline__ void Mma(float (&d)[4],
                                    const uint32_t (&a)[4],
                                    uint32_t b0,
                                    uint32_t b1);
template <>
__device__ __forceinline__ void Mma<bf16>(float (&d)[4],
                                          const uint32_t (&a)[4],
                                          uint32_t b0,
                                          uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void Mma<fp16>(float (&d)[4],
                                          const uint32_t (&a)[4],
                                          uint32_t b0,
                                          uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 matrices; lanes 8 i .. 8 i + 7 give the addresses of matrix i's rows.
__device__ __forceinline__ void LoadMatrix4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void LoadMatrix2(uint32_t (&r)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

// Position of 16-byte vector `vector` of row `row` in a stage: rows of 128 bytes, vectors swizzled
// within them, so that eight rows of one column of vectors lie in different banks.
__device__ __forceinline__ int Swizzled(int row, int vector) {
  return row * kChunkVectors + (vector ^ (row & 7));
}

// Sum of the partial tiles of blocks [first, last], element by element in the order of the blocks.
__device__ __forceinline__ float4 SumPartials(
    const float* partials, int slot_floats, int first, int last, int first_slot_of_first, int at) {
  float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int block = first; block <= last; ++block) {
    // A tile is the last segment of its first block and the first segment of the others.
    const int slot = 2 * block + (block == first ? first_slot_of_first : 0);
    const float4 v =
        __ldcg(reinterpret_cast<const float4*>(partials + int64_t{slot} * slot_floats + at));
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
  }
  return sum;
}

// kTokenTiles tiles of 8 rows of x.
template <typename T, int kTokenTiles, int kStages>
__global__ void __launch_bounds__(kThreads)
    SkinnyKernel(const __grid_constant__ GemmArgs a, Schedule schedule, SkinnyWorkspace workspace) {
  constexpr int kTokens = 8 * kTokenTiles;
  constexpr int kWeightVectors = kTileN * kChunkVectors;
  constexpr int kInputVectors = kTokens * kChunkVectors;
  constexpr int kStageVectors = kWeightVectors + kInputVectors;
  extern __shared__ __align__(128) uint4 shared[];
  float* tile =
      reinterpret_cast<float*>(shared + kStages * kStageVectors);  // [kTokens][kTileStride]
  __shared__ bool is_last;
  LaunchNext();

  const int thread = threadIdx.x;
  const int lane = thread & 31;
  const int warp = thread >> 5;
  const int row_group = warp & 3;  // 32 weight rows
  const int k_half = warp >> 2;    // 32 of a chunk's k
  const int begin = schedule.Begin(blockIdx.x);
  const int end = schedule.Begin(blockIdx.x + 1);
  const Cursor first = {begin, begin / schedule.num_chunks, begin % schedule.num_chunks, 0};

  const int load_row = thread / kChunkVectors;  // and every kThreads / kChunkVectors rows on
  const int load_vector = thread % kChunkVectors;
  const auto load_weights = [&](const Cursor& at) {
    const int vector = at.chunk * kChunkVectors + load_vector;
    const int row = at.tile * kTileN + load_row;
    const uint4* source =
        static_cast<const uint4*>(a.weight) + int64_t{row} * (a.k / kVector) + vector;
    uint4* stage = shared + at.stage * kStageVectors;
    constexpr int kRowStep = kThreads / kChunkVectors;
#pragma unroll
    for (int i = 0; i < kTileN / kRowStep; ++i) {
      const bool valid = row + i * kRowStep < a.n && vector * kVector < a.k;
      AsyncCopy16(stage + Swizzled(load_row + i * kRowStep, load_vector),
                  valid ? source + int64_t{i} * kRowStep * (a.k / kVector) : a.weight,
                  valid);
    }
  };
  const auto load_input = [&](const Cursor& at) {
    const int first_k = at.chunk * kChunkK;
    uint4* stage = shared + at.stage * kStageVectors + kWeightVectors;
    for (int i = thread; i < kInputVectors; i += kThreads) {
      const int row = i / kChunkVectors;
      const int vector = i % kChunkVectors;
      const bool valid = row < a.m && first_k + vector * kVector < a.k;
      const T* source = static_cast<const T*>(a.x);
      if (valid) source += row * a.x_stride + first_k + vector * kVector;
      AsyncCopy16(stage + Swizzled(row, vector), source, valid);
    }
  };

  // Weights of the first stages are under way before the previous kernel has ended; x must wait for
  // it.
  Cursor load = first;
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (load.unit < end) load_weights(load);
    load.Advance(schedule, kStages);
  }
  WaitForPrevious();
  load = first;
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (load.unit < end) load_input(load);
    AsyncCommit();  // the first group also holds all the weights
    load.Advance(schedule, kStages);
  }

  float acc[2][kTokenTiles][4] = {};
  for (Cursor at = first; at.unit < end; at.Advance(schedule, kStages)) {
    AsyncWait<kStages - 2>();
    __syncthreads();  // the stage has landed for all, and all have left the one that is filled next
    if (load.unit < end) {
      load_weights(load);
      load_input(load);
    }
    AsyncCommit();
    load.Advance(schedule, kStages);

    const uint4* stage = shared + at.stage * kStageVectors;
    const uint4* input = stage + kWeightVectors;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int v0 = k_half * 4 + step * 2;  // first vector of 16 k
      uint32_t wa[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = row_group * 32 + i * 16 + (lane & 15);
        LoadMatrix4(wa[i], SharedAddress(stage + Swizzled(row, v0 + (lane >> 4))));
      }
      if constexpr (kTokenTiles == 1) {
        uint32_t xb[2];
        LoadMatrix2(xb, SharedAddress(input + Swizzled(lane & 7, v0 + ((lane >> 3) & 1))));
#pragma unroll
        for (int i = 0; i < 2; ++i) Mma<T>(acc[i][0], wa[i], xb[0], xb[1]);
      } else {
#pragma unroll
        for (int j = 0; j < kTokenTiles; j += 2) {
          uint32_t xb[4];
          const int row = j * 8 + (lane & 7) + ((lane >> 4) << 3);
          LoadMatrix4(xb, SharedAddress(input + Swizzled(row, v0 + ((lane >> 3) & 1))));
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            Mma<T>(acc[i][j], wa[i], xb[0], xb[1]);
            Mma<T>(acc[i][j + 1], wa[i], xb[2], xb[3]);
          }
        }
      }
    }

    if (at.chunk + 1 < schedule.num_chunks && at.unit + 1 < end) continue;

      // ---- The segment of this tile ends here. Add the two halves of k in shared memory.
#pragma unroll
    for (int half = 1; half >= 0; --half) {
      if (k_half == half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const int n = row_group * 32 + i * 16 + (lane >> 2) + (e >> 1) * 8;
              const int token = j * 8 + (lane & 3) * 2 + (e & 1);
              float* at = tile + token * kTileStride + n;
              *at = half == 1 ? acc[i][j][e] : *at + acc[i][j][e];
              acc[i][j][e] = 0.0f;
            }
          }
        }
      }
      __syncthreads();
    }

    // ---- Hand over: to the output, or to the block that arrives last at this tile.
    const int tile_begin = at.tile * schedule.num_chunks;
    const int tile_end = tile_begin + schedule.num_chunks;
    const bool whole = begin <= tile_begin && tile_end <= end;
    constexpr int kVectorsOfTile = kTileN / 4;
    constexpr int kSlotFloats = kTokens * kTileN;
    const int first_block = schedule.Owner(tile_begin);
    const int last_block = schedule.Owner(tile_end - 1);
    // Whether the tile is also the first segment of its first block.
    const int first_slot = schedule.Begin(first_block) >= tile_begin ? 0 : 1;
    if (!whole) {
      const int slot =
          2 * blockIdx.x + (static_cast<int>(blockIdx.x) == first_block ? first_slot : 0);
      float* out = workspace.partials + int64_t{slot} * kSlotFloats;
      for (int i = thread; i < a.m * kVectorsOfTile; i += kThreads) {
        const int token = i / kVectorsOfTile;
        const int n = i % kVectorsOfTile * 4;
        __stcg(reinterpret_cast<float4*>(out + token * kTileN + n),
               *reinterpret_cast<const float4*>(tile + token * kTileStride + n));
      }
      __threadfence();  // partials before the ticket
      __syncthreads();
      if (thread == 0) {
        const uint32_t contributors = last_block - first_block + 1;
        is_last = atomicAdd(workspace.counters + at.tile, 1) == contributors - 1;
        if (is_last) workspace.counters[at.tile] = 0;  // for the next launch
        __threadfence();                               // the ticket before others' partials
      }
      __syncthreads();
    }
    if (whole || is_last) {
      for (int i = thread; i < a.m * kVectorsOfTile; i += kThreads) {
        const int token = i / kVectorsOfTile;
        const int n = i % kVectorsOfTile * 4;
        const float4 sum = whole ? *reinterpret_cast<const float4*>(tile + token * kTileStride + n)
                                 : SumPartials(workspace.partials,
                                               kSlotFloats,
                                               first_block,
                                               last_block,
                                               first_slot,
                                               token * kTileN + n);
        const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int column = at.tile * kTileN + n + e;
          if (column < a.n) {
            StoreOutput<T>(a, token, column, values[e] + Addend<T>(a, token, column));
          }
        }
      }
    }
    __syncthreads();  // the tile is free, is_last was read
  }
}

int TokenTiles(int m) { return m <= 8 ? 1 : m <= 16 ? 2 : m <= 32 ? 4 : 8; }

size_t SharedBytes(int token_tiles, int stages) {
  const size_t tokens = size_t{8} * token_tiles;
  return stages * (kTileN + tokens) * kChunkK * 2 + tokens * kTileStride * sizeof(float);
}

Schedule MakeSchedule(const DeviceContext& context, const SkinnyConfig& config, const GemmArgs& a) {
  Schedule schedule = {(a.n + kTileN - 1) / kTileN, (a.k + kChunkK - 1) / kChunkK, 0};
  schedule.num_blocks = std::min(context.num_sms * config.blocks_per_sm, schedule.total());
  return schedule;
}

template <typename T, int kTokenTiles, int kStages>
absl::Status LaunchVariant(const DeviceContext& context,
                           const SkinnyWorkspace& workspace,
                           const SkinnyConfig& config,
                           const GemmArgs& a) {
  const Schedule schedule = MakeSchedule(context, config, a);
  return Launch(context,
                {.kernel = "skinny_gemm",
                 .grid = static_cast<unsigned>(schedule.num_blocks),
                 .block = kThreads,
                 .shared_bytes = SharedBytes(kTokenTiles, kStages)},
                SkinnyKernel<T, kTokenTiles, kStages>,
                a,
                schedule,
                workspace);
}

template <typename T, int kTokenTiles>
absl::Status LaunchForTokens(const DeviceContext& context,
                             const SkinnyWorkspace& workspace,
                             const SkinnyConfig& config,
                             const GemmArgs& a) {
  if (config.stages == 4) return LaunchVariant<T, kTokenTiles, 4>(context, workspace, config, a);
  return LaunchVariant<T, kTokenTiles, 6>(context, workspace, config, a);
}

}  // namespace

size_t SkinnyPartialsBytes(int num_sms) {
  // Two slots a block, two blocks an SM.
  return size_t{2} * 2 * num_sms * kMaxSkinnyRows * kTileN * sizeof(float);
}

bool SkinnyFits(const DeviceContext& context,
                const SkinnyWorkspace& workspace,
                const SkinnyConfig& config,
                const GemmArgs& a) {
  if (a.m < 1 || a.m > kMaxSkinnyRows || a.transform != InputTransform::kNone ||
      a.output != OutputTransform::kNone) {
    return false;
  }
  if (config.stages != 4 && config.stages != 6) return false;
  if (config.blocks_per_sm != 1 && config.blocks_per_sm != 2) return false;
  // The runtime keeps 1 KB of each block for itself.
  constexpr int kReservedBytes = 1024;
  const int available =
      (context.max_block_shared_bytes + kReservedBytes) / config.blocks_per_sm - kReservedBytes;
  constexpr int kStaticBytes = 128;
  const int64_t units = (int64_t{a.n} / kTileN + 1) * (int64_t{a.k} / kChunkK + 1);
  return GemmVectorAligned(a) && units < (int64_t{1} << 31) &&
         (a.n + kTileN - 1) / kTileN <= workspace.max_tiles &&
         workspace.partials_bytes >= SkinnyPartialsBytes(context.num_sms) &&
         SharedBytes(TokenTiles(a.m), config.stages) + kStaticBytes <=
             static_cast<size_t>(available);
}

absl::Status LaunchSkinny(const DeviceContext& context,
                          const SkinnyWorkspace& workspace,
                          const SkinnyConfig& config,
                          DType dtype,
                          const GemmArgs& a) {
  return DispatchDType(dtype, "linear", [&]<typename T>() {
    switch (TokenTiles(a.m)) {
      case 1:
        return LaunchForTokens<T, 1>(context, workspace, config, a);
      case 2:
        return LaunchForTokens<T, 2>(context, workspace, config, a);
      case 4:
        return LaunchForTokens<T, 4>(context, workspace, config, a);
      default:
        return LaunchForTokens<T, 8>(context, workspace, config, a);
    }
  });
}

}  // namespace pagoda::kernels::cuda
