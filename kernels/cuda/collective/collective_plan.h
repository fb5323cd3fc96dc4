#pragma once

#include <cstddef>
#include <cstdint>

// How a collective over peers' memory is divided: pure, so that it is tested without a GPU. All
// ranks must come to the same shots and layout; blocks may differ.

namespace pagoda::kernels::cuda {

inline constexpr int kMaxRanks = 8;
inline constexpr int kVectorBytes = 16;
// Of a launch: the epoch of each is kept apart.
inline constexpr int kMaxReduceBlocks = 512;
// Threads of the largest block, and how many of those a multiprocessor has the registers for: a
// thread that looks at many ranks' slots at once needs twice as many.
inline constexpr int kMaxReduceThreads = 512;
constexpr int ReduceBlocksPerSm(int num_ranks, bool has_norm) {
  return num_ranks <= 2 && !has_norm ? 2 : 1;
}
// Of a gather: each has slots of its own, so the number is the same everywhere.
inline constexpr int kNumGatherBlocks = 64;

// What a launch reduces at most; more is done in parts.
inline constexpr int64_t kMaxReduceBytes = int64_t{8} << 20;

enum class Shots : int {
  kAuto = 0,
  // Every rank sends all it has to every other, and adds: one trip.
  kOne = 1,
  // Every rank adds one part of the data, of all ranks, and sends the sum: two trips, fewer bytes.
  kTwo = 2,
};

// Fewest trips that pay, by ranks and bytes.
Shots ChooseShots(int num_ranks, int64_t num_bytes);

// Slots of a reduction in the memory of each rank, in vectors. One-shot: [sender][vector];
// two-shot: [sender][vector of this rank's part], then [vector] for sums from their owners.
struct ReduceLayout {
  int64_t vectors_per_sender = 0;
  int64_t first_sum = 0;
  int64_t num_vectors = 0;  // in all
};
ReduceLayout LayOutReduce(Shots shots, int num_ranks, int64_t num_vectors);
// What the slots have room for.
int64_t MaxReduceVectors(Shots shots, int num_ranks);

// Two-shot: who adds a vector. Parts alternate by 32 vectors, so that a warp stores to one rank.
inline constexpr int kPartVectors = 32;
constexpr int OwnerOf(int64_t vector, int num_ranks) {
  return static_cast<int>(vector / kPartVectors % num_ranks);
}
// Where that vector is among those of its owner.
constexpr int64_t PlaceInPart(int64_t vector, int num_ranks) {
  return vector / kPartVectors / num_ranks * kPartVectors + vector % kPartVectors;
}

// Memory of a rank that its peers write.
struct RegionLayout {
  size_t reduce_parity_bytes = 0;  // one of the two that reductions take turns with
  size_t gather_piece_bytes = 0;   // what a block of a gather sends at once
  size_t gather_parity_bytes = 0;  // [block][sender] pieces
  size_t total_bytes = 0;          // two parities of both
};
RegionLayout LayOutRegion(int num_ranks);

// A grid: blocks work on tiles by turns.
struct ReduceGrid {
  int num_blocks = 0;
  int num_threads = 0;
  int vectors_per_thread = 1;
};
// Blocks are never more than can run at once beside those of the other ranks on this device: each
// waits for the same of another rank. The plain reduction's tiles are as long as a block;
// AllReduceNorm's are rows.
ReduceGrid PlanReduce(int num_ranks, int64_t num_vectors, int num_sms, int ranks_on_device);
ReduceGrid PlanReduceNorm(
    int num_ranks, int64_t rows, int64_t row_vectors, int num_sms, int ranks_on_device);
// Longest row, in vectors, that PlanReduceNorm has a grid for.
inline constexpr int64_t kMaxRowVectors = int64_t{4} * kMaxReduceThreads;

}  // namespace pagoda::kernels::cuda
