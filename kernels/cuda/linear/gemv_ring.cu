#include <algorithm>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/linear/gemm_output.cuh"
#include "kernels/cuda/linear/gemv.h"

namespace pagoda::kernels::cuda {
namespace {

// One stage: long enough for the copy engine to run at full speed, short enough that eight warps
// with four stages each (64 KB in flight on an SM, half as much again as the latency of memory asks
// for) leave half the SM to the next kernel.
constexpr int kStageBytes = 2048;
constexpr int kMaxWarps = 16;
// The runtime keeps 1 KB of each block for itself.
constexpr int kReservedBytes = 1024;

// Outputs a warp computes at a time: with several rows of x, two share the unpacking of x. Which of
// the two changes no sum: a lane meets the same k in the same order.
constexpr int RowsAtOnce(int m, bool paired) { return m == 1 && !paired ? 1 : 2; }

// Of two rows that lie far apart each has a whole stage's bytes; a ring has one such stage less.
constexpr int StageBytes(bool paired) { return paired ? 2 * kStageBytes : kStageBytes; }
int NumStages(const GemvRingConfig& config, bool paired) {
  return paired ? std::max(config.stages - 1, 2) : config.stages;
}

// Position of a warp in its stream of stages: chunks of a group of rows, then the next group.
struct RingCursor {
  int group;
  int chunk;
};

// Persistent blocks; warp w of block b computes groups of rows w * gridDim.x + b, + all warps, ...
// so that what is left over is spread over the SMs. No warp waits for another once x is there.
// kPaired: the two rows of a group are a pair of a.output.
template <typename T, int kM, bool kPaired>
__global__ void __launch_bounds__(kMaxWarps * 32)
    GemvRingKernel(const __grid_constant__ GemmArgs a, int num_stages) {
  constexpr int kRows = RowsAtOnce(kM, kPaired);
  constexpr int kStageVectors = StageBytes(kPaired) / 16;
  constexpr int kChunkVectors = kStageVectors / kRows;  // of one row
  extern __shared__ __align__(128) uint4 ring_shared[];
  __shared__ float scratch[kM * 32];
  LaunchNext();

  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  const int num_warps = blockDim.x >> 5;
  const int num_vectors = a.k / kVector;
  const int num_chunks = (num_vectors + kChunkVectors - 1) / kChunkVectors;
  const int num_groups = (a.n + kRows - 1) / kRows;
  const int group_stride = gridDim.x * num_warps;
  const int first_group = warp * gridDim.x + blockIdx.x;

  uint4* ring = ring_shared + warp * num_stages * kStageVectors;
  uint4* x = ring_shared + num_warps * num_stages * kStageVectors;
  uint64_t* barriers = reinterpret_cast<uint64_t*>(x + kM * num_vectors) + warp * num_stages;

  RingCursor next = {first_group, 0};
  const uint64_t policy = EvictFirstPolicy();
  const auto issue = [&](int stage) {
    const int vectors = min(kChunkVectors, num_vectors - next.chunk * kChunkVectors);
    const int first_row = kPaired ? PairColumn(a, next.group) : next.group * kRows;
    const int row_step = kPaired ? a.pair_distance : 1;
    const int rows = kPaired ? 2 : min(kRows, a.n - first_row);
    BarrierExpect(barriers + stage, rows * vectors * 16);
    for (int r = 0; r < rows; ++r) {
      const uint4* source = static_cast<const uint4*>(a.weight) +
                            int64_t{first_row + r * row_step} * num_vectors +
                            next.chunk * kChunkVectors;
      BulkLoadOnce(ring + stage * kStageVectors + r * kChunkVectors,
                   source,
                   vectors * 16,
                   barriers + stage,
                   policy);
    }
    if (++next.chunk == num_chunks) next = {next.group + group_stride, 0};
  };
  if (lane == 0) {
    for (int s = 0; s < num_stages; ++s) BarrierInit(barriers + s, 1);
    BarrierInitFence();
    for (int s = 0; s < num_stages && next.group < num_groups; ++s) issue(s);
  }
  const EarlyNorm early = LoadNormEarly(a);
  WaitForPrevious();
  RowPlace row_place;
  if constexpr (kPaired) {
    if (lane < kM * kRows) row_place = FindRowPlace(a, lane / kRows);
  }
  StageInput<T, kM>(a, early, x, scratch);

  int stage = 0;
  uint32_t parity = 0;
  for (int group = first_group; group < num_groups; group += group_stride) {
    // Lane m * kRows + r finishes output (m, r).
    const int out_m = lane / kRows;
    const int out_n = kPaired ? PairColumn(a, group) + lane % kRows * a.pair_distance
                              : group * kRows + lane % kRows;
    const bool finishes = lane < kM * kRows && out_n < a.n;
    const float addend = finishes ? Addend<T>(a, out_m, out_n) : 0.0f;
    PairPlace place;
    if constexpr (kPaired) {
      if (finishes) place = FindPairPlace(a, row_place, out_m, group, lane % kRows);
    }
    float acc[kRows][kM][2] = {};
    for (int chunk = 0; chunk < num_chunks; ++chunk) {
      const int vectors = min(kChunkVectors, num_vectors - chunk * kChunkVectors);
      BarrierWait(barriers + stage, parity);
      const uint4* w_stage = ring + stage * kStageVectors + lane;
      const uint4* x_chunk = x + chunk * kChunkVectors + lane;
      const auto meet = [&](int v) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          DotVector<T, kM>(w_stage[r * kChunkVectors + v], x_chunk + v, num_vectors, acc[r]);
        }
      };
      if (vectors == kChunkVectors) {
        // Without conditions all reads of shared memory are under way at once.
#pragma unroll
        for (int v = 0; v < kChunkVectors; v += 32) meet(v);
      } else {
        for (int v = 0; v + lane < vectors; v += 32) meet(v);
      }
      __syncwarp();  // all lanes have read the stage
      if (lane == 0 && next.group < num_groups) issue(stage);
      if (++stage == num_stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    float result = 0.0f;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float sum = WarpSum(acc[r][m][0] + acc[r][m][1]);
        if (lane == m * kRows + r) result = sum;
      }
    }
    result += addend;
    if constexpr (kPaired) {
      const float partner = __shfl_xor_sync(kFullWarp, result, 1);
      StorePair<T>(a, place, lane % kRows, result, partner);
    } else if (finishes) {
      StoreOutput<T>(a, out_m, out_n, result);
    }
  }
}

size_t SharedBytes(const GemvRingConfig& config, const GemmArgs& a) {
  const bool paired = a.output != OutputTransform::kNone;
  const size_t stages = size_t{1} * config.warps * NumStages(config, paired);
  return stages * (StageBytes(paired) + sizeof(uint64_t)) + size_t{2} * a.m * a.k;
}

// Shared memory of which blocks_per_sm blocks fit on an SM and no more. With room for one more, the
// blocks of a kernel that starts while the one before drains crowd on the SMs that are free first,
// and their equal shares take twice as long.
size_t ExclusiveSharedBytes(const DeviceContext& context, const GemvRingConfig& config) {
  const size_t of_sm = static_cast<size_t>(context.max_block_shared_bytes) + kReservedBytes;
  return of_sm / (config.blocks_per_sm + 1) - kReservedBytes + 16;
}

template <typename T, int kM, bool kPaired>
absl::Status LaunchRing(const DeviceContext& context,
                        const GemvRingConfig& config,
                        const GemmArgs& a) {
  constexpr int kRows = RowsAtOnce(kM, kPaired);
  const int groups = (a.n + kRows - 1) / kRows;
  const int blocks =
      std::min(context.num_sms * config.blocks_per_sm, (groups + config.warps - 1) / config.warps);
  return Launch(
      context,
      {.kernel = "gemv_ring",
       .grid = static_cast<unsigned>(blocks),
       .block = static_cast<unsigned>(config.warps * 32),
       .shared_bytes = std::max(SharedBytes(config, a), ExclusiveSharedBytes(context, config))},
      GemvRingKernel<T, kM, kPaired>,
      a,
      NumStages(config, kPaired));
}

template <typename T, int kM>
absl::Status LaunchRingForRows(const DeviceContext& context,
                               const GemvRingConfig& config,
                               const GemmArgs& a) {
  if (a.output == OutputTransform::kNone) return LaunchRing<T, kM, false>(context, config, a);
  return LaunchRing<T, kM, true>(context, config, a);
}

}  // namespace

bool GemvRingFits(const DeviceContext& context, const GemvRingConfig& config, const GemmArgs& a) {
  // Configurations also come from files.
  constexpr int kMaxStages = 64;
  if (config.warps < 1 || config.warps > kMaxWarps || config.stages < 1 ||
      config.stages > kMaxStages || config.blocks_per_sm < 1 || config.blocks_per_sm > 8) {
    return false;
  }
  if (a.output != OutputTransform::kNone &&
      (a.pair_distance < 1 || a.n % (2 * a.pair_distance) != 0)) {
    return false;
  }
  const int available =
      (context.max_block_shared_bytes + kReservedBytes) / config.blocks_per_sm - kReservedBytes;
  constexpr int kStaticBytes = kMaxGemvRows * 32 * 4;
  return a.m >= 1 && a.m <= kMaxGemvRows && GemmVectorAligned(a) &&
         SharedBytes(config, a) + kStaticBytes <= static_cast<size_t>(available);
}

absl::Status LaunchGemvRing(const DeviceContext& context,
                            const GemvRingConfig& config,
                            DType dtype,
                            const GemmArgs& a) {
  return DispatchDType(dtype, "linear", [&]<typename T>() {
    switch (a.m) {
      case 1:
        return LaunchRingForRows<T, 1>(context, config, a);
      case 2:
        return LaunchRingForRows<T, 2>(context, config, a);
      case 3:
        return LaunchRingForRows<T, 3>(context, config, a);
      default:
        return LaunchRingForRows<T, 4>(context, config, a);
    }
  });
}

}  // namespace pagoda::kernels::cuda
