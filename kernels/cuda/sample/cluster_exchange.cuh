#pragma once

#include <cooperative_groups.h>

#include "kernels/cuda/sample/sample_device.cuh"

// Numbers that the blocks of a cluster exchange: sums and largest keys, added in one order
// everywhere, so that all blocks decide by the same bits.

namespace pagoda::kernels::cuda {

namespace cg = cooperative_groups;

inline constexpr int kClusterBlocks = 8;
inline constexpr int kSelectThreads = 256;
inline constexpr int kSelectWarps = kSelectThreads / 32;
inline constexpr int kMaxSums = 4;  // at once

// Part of the order that is in play: value above this one's, or equal and id at most this one's.
struct Cutoff {
  float value;
  int32_t id;

  __device__ bool Keeps(float v, int32_t i) const { return v > value || (v == value && i <= id); }
};

// Up to kMaxSums numbers of tokens and weights: partial sums of a thread, then sums over the
// cluster.
struct Tally {
  uint32_t count[kMaxSums];
  double mass[kMaxSums];
};

// What one block shows the others. Two alternate, so that one barrier an exchange is enough: a
// block writes one again only after the barrier that follows the others' reads.
struct BlockExchange {
  Tally tally;
  unsigned long long key;
  Cutoff cutoff;
};

struct ExchangeShared {
  BlockExchange exchange[2];
  Tally warp_tally[kSelectWarps];
  Tally sum;
  unsigned long long key_scratch[32];
  unsigned long long key;
  uint32_t count;
};

// Methods are called by all threads of all blocks, unless they say otherwise.
class ClusterExchange {
 public:
  __device__ explicit ClusterExchange(ExchangeShared& shared) : s_(shared) {}

  // This block's place for what it shows next; a barrier of the cluster comes before it is read.
  __device__ BlockExchange& Next() {
    parity_ ^= 1;
    return s_.exchange[parity_];
  }
  // After that barrier: block 0's.
  __device__ const BlockExchange& OfLeader() {
    return *cluster_.map_shared_rank(&s_.exchange[parity_], 0);
  }

  // Largest key of the block. Called by all threads of one block.
  __device__ unsigned long long BlockMax(unsigned long long key) {
    __syncthreads();
    return BlockMaxKey(key, s_.key_scratch);
  }

  // What MaxKey added up last.
  __device__ uint32_t count() const { return s_.count; }

  // Largest key of the cluster; the counts are added up.
  __device__ unsigned long long MaxKey(unsigned long long key, uint32_t count = 0) {
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    count = __reduce_add_sync(kFullWarp, count);
    if (lane == 0) s_.warp_tally[warp].count[0] = count;
    key = BlockMax(key);
    BlockExchange& mine = Next();
    if (warp == 0) {
      count = __reduce_add_sync(kFullWarp, lane < kSelectWarps ? s_.warp_tally[lane].count[0] : 0);
      if (lane == 0) {
        mine.key = key;
        mine.tally.count[0] = count;
      }
    }
    cluster_.sync();
    if (warp == 0) {
      const bool holds = lane < kClusterBlocks;
      const BlockExchange& theirs = *cluster_.map_shared_rank(&mine, holds ? lane : 0);
      key = WarpMaxKey(holds ? theirs.key : kNoKey);
      count = __reduce_add_sync(kFullWarp, holds ? theirs.tally.count[0] : 0);
      if (lane == 0) {
        s_.key = key;
        s_.count = count;
      }
    }
    __syncthreads();
    return s_.key;
  }

  // Adds up the first kNum counts or masses over the cluster. Each thread comes with its own and
  // leaves with the sums.
  template <int kNum, bool kCounts, bool kMasses>
  __device__ void Sum(Tally* tally) {
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
#pragma unroll
    for (int j = 0; j < kNum; ++j) {
      if (kCounts) tally->count[j] = __reduce_add_sync(kFullWarp, tally->count[j]);
      if (kMasses) tally->mass[j] = WarpSumDouble(tally->mass[j]);
      if (lane == 0) {
        if (kCounts) s_.warp_tally[warp].count[j] = tally->count[j];
        if (kMasses) s_.warp_tally[warp].mass[j] = tally->mass[j];
      }
    }
    __syncthreads();
    // Warp j adds number j of the block's warps, then of the cluster's blocks.
    BlockExchange& mine = Next();
    if (warp < kNum) {
      const bool holds = lane < kSelectWarps;
      const uint32_t count =
          kCounts ? __reduce_add_sync(kFullWarp, holds ? s_.warp_tally[lane].count[warp] : 0) : 0;
      const double mass =
          kMasses ? WarpSumDouble(holds ? s_.warp_tally[lane].mass[warp] : 0.0) : 0.0;
      if (lane == 0) {
        mine.tally.count[warp] = count;
        mine.tally.mass[warp] = mass;
      }
    }
    cluster_.sync();
    if (warp < kNum) {
      const bool holds = lane < kClusterBlocks;
      const Tally& theirs = cluster_.map_shared_rank(&mine, holds ? lane : 0)->tally;
      const uint32_t count =
          kCounts ? __reduce_add_sync(kFullWarp, holds ? theirs.count[warp] : 0) : 0;
      const double mass = kMasses ? WarpSumDouble(holds ? theirs.mass[warp] : 0.0) : 0.0;
      if (lane == 0) {
        s_.sum.count[warp] = count;
        s_.sum.mass[warp] = mass;
      }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kNum; ++j) {
      if (kCounts) tally->count[j] = s_.sum.count[j];
      if (kMasses) tally->mass[j] = s_.sum.mass[j];
    }
  }

 private:
  // The same sum in every lane: additions of a butterfly commute.
  static __device__ double WarpSumDouble(double v) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(kFullWarp, v, offset);
    return v;
  }

  // ---- Constant.
  cg::cluster_group cluster_ = cg::this_cluster();
  ExchangeShared& s_;
  // ---- State.
  int parity_ = 0;
};

}  // namespace pagoda::kernels::cuda
