#include "kernels/cuda/collective/collective_plan.h"

#include <algorithm>

namespace pagoda::kernels::cuda {
namespace {

// Where the second trip pays for the bytes it saves, by ranks: measured on H200 for two, where it
// saves none, but slots; others as reported by those who have measured the same kernels there.
constexpr int64_t kOneShotBytes[kMaxRanks + 1] = {
    4 << 20, 4 << 20, 4 << 20, 512 << 10, 384 << 10, 256 << 10, 192 << 10, 192 << 10, 160 << 10};

constexpr int kMaxBlocksPerSm = 4;
constexpr int kWarpThreads = 32;
// A small message is spread over many multiprocessors, whose stores leave side by side; a large one
// fills them all.
constexpr int kSmallBlock = 128;
constexpr int kLargeBlock = kMaxReduceThreads;

constexpr int64_t kMaxVectors = kMaxReduceBytes / kVectorBytes;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Enough for either kind.
int64_t SlotVectors(int num_ranks) {
  const int64_t one_shot = kOneShotBytes[num_ranks] / kVectorBytes;
  return std::max(LayOutReduce(Shots::kTwo, num_ranks, kMaxVectors).num_vectors,
                  LayOutReduce(Shots::kOne, num_ranks, one_shot).num_vectors);
}

int MaxBlocks(int num_threads, int threads_per_sm, int num_sms, int ranks_on_device) {
  const int per_sm = std::min(kMaxBlocksPerSm, threads_per_sm / num_threads);
  return std::clamp(num_sms * per_sm / ranks_on_device, 1, kMaxReduceBlocks);
}

}  // namespace

Shots ChooseShots(int num_ranks, int64_t num_bytes) {
  return num_bytes <= kOneShotBytes[num_ranks] ? Shots::kOne : Shots::kTwo;
}

ReduceLayout LayOutReduce(Shots shots, int num_ranks, int64_t num_vectors) {
  if (shots == Shots::kOne) {
    return {.vectors_per_sender = num_vectors,
            .first_sum = num_ranks * num_vectors,
            .num_vectors = num_ranks * num_vectors};
  }
  const int64_t part = CeilDiv(CeilDiv(num_vectors, kPartVectors), num_ranks) * kPartVectors;
  return {.vectors_per_sender = part,
          .first_sum = num_ranks * part,
          .num_vectors = num_ranks * part + num_vectors};
}

int64_t MaxReduceVectors(Shots shots, int num_ranks) {
  if (shots == Shots::kTwo) return kMaxVectors;
  return std::min(kMaxVectors, SlotVectors(num_ranks) / num_ranks);
}

RegionLayout LayOutRegion(int num_ranks) {
  RegionLayout layout;
  layout.reduce_parity_bytes = static_cast<size_t>(SlotVectors(num_ranks)) * kVectorBytes;
  layout.gather_piece_bytes = num_ranks <= 4 ? size_t{32} << 10 : size_t{16} << 10;
  layout.gather_parity_bytes =
      kNumGatherBlocks * static_cast<size_t>(num_ranks) * layout.gather_piece_bytes;
  layout.total_bytes = 2 * (layout.reduce_parity_bytes + layout.gather_parity_bytes);
  return layout;
}

ReduceGrid PlanReduce(int num_ranks, int64_t num_vectors, int num_sms, int ranks_on_device) {
  const int threads_per_sm = kMaxReduceThreads * ReduceBlocksPerSm(num_ranks, false);
  ReduceGrid grid;
  grid.num_threads = num_vectors <= int64_t{kSmallBlock} * num_sms ? kSmallBlock : kLargeBlock;
  const int64_t tiles = CeilDiv(num_vectors, grid.num_threads);
  grid.num_blocks = static_cast<int>(std::min<int64_t>(
      tiles, MaxBlocks(grid.num_threads, threads_per_sm, num_sms, ranks_on_device)));
  return grid;
}

ReduceGrid PlanReduceNorm(
    int num_ranks, int64_t rows, int64_t row_vectors, int num_sms, int ranks_on_device) {
  const int threads_per_sm = kMaxReduceThreads * ReduceBlocksPerSm(num_ranks, true);
  ReduceGrid grid;
  grid.vectors_per_thread = 1;
  while (grid.vectors_per_thread * kMaxReduceThreads < row_vectors) grid.vectors_per_thread *= 2;
  const int64_t threads = CeilDiv(row_vectors, grid.vectors_per_thread);
  grid.num_threads = static_cast<int>(CeilDiv(threads, kWarpThreads)) * kWarpThreads;
  grid.num_blocks = static_cast<int>(std::min<int64_t>(
      rows, MaxBlocks(grid.num_threads, threads_per_sm, num_sms, ranks_on_device)));
  return grid;
}

}  // namespace pagoda::kernels::cuda
