#include <algorithm>

#include "kernels/cuda/sample/sampler.h"
#include "kernels/cuda/sample/token_list.cuh"

// Rows with top_k, after the pass that left the largest logit of each block of tokens. At least
// top_k tokens are at or above the largest of the top_k-th block, and in random order hardly more:
// they are gathered from the blocks that can have them, sorted, cut and drawn from.

namespace pagoda::kernels::cuda {
namespace {

constexpr int kTopThreads = 256;
constexpr int kTopWarps = kTopThreads / 32;
constexpr int kMaxBlocks = kMaxTopVocab / kBlockTokens;
constexpr int kOwnBlocks = kMaxBlocks / kTopThreads;  // of one thread
constexpr int kCapacity = 1024;                       // of the list
static_assert(kCapacity >= kMaxTopK);
// Blocks that a warp reads at once.
constexpr int kReads = 4;

struct TopShared {
  unsigned long long list[kCapacity];
  unsigned long long sorted[kCapacity];
  unsigned long long key_scratch[32];
  uint16_t blocks[kMaxBlocks];
  uint32_t warp_count[2][kTopWarps];
  uint32_t num_blocks;
  uint32_t list_size;
};

// One row in one block of threads. Methods are called by all of them.
class TopRow {
 public:
  __device__ TopRow(const SampleParams& p, int64_t row_idx, TopShared& shared)
      : vocab_size_(p.vocab_size), logits_(p.logits + row_idx * p.logits_stride), s_(shared) {
    if (threadIdx.x == 0) {
      s_.num_blocks = 0;
      s_.list_size = 0;
    }
  }

  // Reads the maxima; OrderedBits of the largest logit.
  __device__ uint32_t Load(const uint32_t* maxima) {
    const int num_blocks = NumSampleUnits(vocab_size_) * kUnitBlocks;
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < kOwnBlocks; ++j) {
      const int block = static_cast<int>(threadIdx.x) + j * kTopThreads;
      own_[j] = block < num_blocks ? __ldcg(maxima + block) : 0;
      largest = max(largest, own_[j]);
    }
    return static_cast<uint32_t>(BlockMaxKey(largest, s_.key_scratch));
  }

  // A value that at least `wanted` tokens reach, from the maxima of as many blocks; not many more
  // blocks reach it. OrderedBits, at least those of -FLT_MAX.
  __device__ uint32_t Threshold(uint32_t largest, uint32_t wanted) {
    const uint32_t enough = wanted + wanted / 8 + 8;
    uint32_t low = OrderedBits(-FLT_MAX), high = largest + 1;
    uint32_t count_low = UINT32_MAX;
    while (high - low > 1 && count_low > enough) {
      const uint32_t middle = low + (high - low) / 2;
      uint32_t count = 0;
#pragma unroll
      for (const uint32_t most : own_) count += most >= middle ? 1 : 0;
      count = Sum(count);
      if (count >= wanted) {
        low = middle;
        count_low = count;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // Makes the sorted list of tokens at or above `threshold`, of at least the first `wanted` of
  // them; returns its size.
  __device__ int Gather(uint32_t threshold, uint32_t largest, uint32_t wanted) {
#pragma unroll
    for (int j = 0; j < kOwnBlocks; ++j) {
      if (own_[j] >= threshold) {
        s_.blocks[atomicAdd(&s_.num_blocks, 1u)] =
            static_cast<uint16_t>(threadIdx.x + j * kTopThreads);
      }
    }
    __syncthreads();
    unsigned long long low = static_cast<unsigned long long>(threshold) << 32;
    uint32_t size = FillList(low);
    if (size > kCapacity) {
      // Many tokens in few blocks, or ties. Keys are all different: some key has enough at or above
      // it, and not too many.
      unsigned long long high = static_cast<unsigned long long>(largest + 1) << 32;
      while (size > kCapacity) {
        const unsigned long long middle = low + (high - low) / 2;
        const uint32_t count = CountKeys(middle);
        if (count >= wanted) {
          low = middle;
          size = count;
        } else {
          high = middle;
        }
      }
      if (threadIdx.x == 0) s_.list_size = 0;
      __syncthreads();
      FillList(low);
    }
    // Few: the place of each is how many are before it.
    for (uint32_t i = threadIdx.x; i < size; i += kTopThreads) {
      const unsigned long long key = s_.list[i];
      uint32_t before = 0;
      for (uint32_t j = 0; j < size; ++j) before += s_.list[j] > key ? 1 : 0;
      s_.sorted[before] = key;
    }
    __syncthreads();
    return static_cast<int>(size);
  }

 private:
  // Sum over the block, in every thread.
  __device__ uint32_t Sum(uint32_t count) {
    count = __reduce_add_sync(kFullWarp, count);
    // Two alternate, so that one barrier is enough.
    parity_ ^= 1;
    if ((threadIdx.x & 31) == 0) s_.warp_count[parity_][threadIdx.x >> 5] = count;
    __syncthreads();
    uint32_t sum = 0;
#pragma unroll
    for (int w = 0; w < kTopWarps; ++w) sum += s_.warp_count[parity_][w];
    return sum;
  }

  // Calls fn(key) for this thread's tokens of the chosen blocks.
  template <typename Fn>
  __device__ void ForTokens(Fn&& fn) const {
    const int lane = threadIdx.x & 31;
    const auto num_blocks = static_cast<int>(s_.num_blocks);
    for (int base = static_cast<int>(threadIdx.x >> 5); base < num_blocks;
         base += kTopWarps * kReads) {
      float z[kReads][kGroup];
      int32_t first[kReads];
#pragma unroll
      for (int r = 0; r < kReads; ++r) {
        const int at = base + r * kTopWarps;
        first[r] = at < num_blocks ? s_.blocks[at] * kBlockTokens + lane * kGroup : vocab_size_;
        Read(first[r], z[r]);
      }
#pragma unroll
      for (int r = 0; r < kReads; ++r) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) fn(SortKey(z[r][i], first[r] + i));
      }
    }
  }
  __device__ __forceinline__ void Read(int32_t first, float (&z)[kGroup]) const {
    const float* group = logits_ + first;
    if (first + kGroup <= vocab_size_ && reinterpret_cast<uintptr_t>(group) % 16 == 0) {
      const float4 v = LoadStream16(group);
      z[0] = v.x;
      z[1] = v.y;
      z[2] = v.z;
      z[3] = v.w;
      return;
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) z[i] = first + i < vocab_size_ ? __ldcg(group + i) : -INFINITY;
  }

  __device__ uint32_t CountKeys(unsigned long long low) {
    uint32_t count = 0;
    ForTokens([&](unsigned long long key) { count += key >= low ? 1 : 0; });
    return Sum(count);
  }

  // Keys at and above `low`, as many as fit; returns how many there are.
  __device__ uint32_t FillList(unsigned long long low) {
    ForTokens([&](unsigned long long key) {
      if (key < low) return;
      const uint32_t at = atomicAdd(&s_.list_size, 1u);
      if (at < kCapacity) s_.list[at] = key;
    });
    __syncthreads();
    return s_.list_size;
  }

  const int32_t vocab_size_;
  const float* const logits_;
  TopShared& s_;
  uint32_t own_[kOwnBlocks];  // maxima of this thread's blocks
  int parity_ = 0;
};

__global__ void __launch_bounds__(kTopThreads)
    TopKernel(const __grid_constant__ SampleParams p, const uint32_t* maxima) {
  __shared__ TopShared shared;
  LaunchNext();
  WaitForPrevious();
  const int64_t row_idx = blockIdx.x;
  const SampleRow row = LoadRow(p.row_params + row_idx);
  if (RouteOf(row, row_idx, p.vocab_size) != SampleRoute::kTop) return;
  TopRow z(p, row_idx, shared);
  const uint32_t largest =
      z.Load(maxima + row_idx * int64_t{NumSampleUnits(p.vocab_size)} * kUnitBlocks);
  int32_t token = kNonFinite;
  if (largest >= OrderedBits(-FLT_MAX) && largest <= OrderedBits(FLT_MAX)) {
    const float largest_value = FromOrderedBits(largest);
    const auto top_k = static_cast<uint32_t>(row.top_k);
    uint32_t threshold = z.Threshold(largest, top_k);
    if (row.min_p > 0.0f) {
      const float floor = fmaxf(largest_value + row.temperature * logf(row.min_p), -FLT_MAX);
      threshold = max(threshold, OrderedBits(floor));
    }
    const int size = z.Gather(threshold, largest, top_k);
    const unsigned long long drawn = DrawFromList(shared.sorted,
                                                  size,
                                                  row,
                                                  MakeRowScale(largest_value, row.temperature),
                                                  kMassOfList,
                                                  shared.key_scratch);
    if (drawn != kNoKey) token = KeyId(drawn);
  }
  if (threadIdx.x != 0) return;
  p.tokens[row_idx] = token;
  if (row.slot >= 0 && row.slot < p.num_slots) p.last_tokens[row.slot] = token;
}

}  // namespace

absl::Status LaunchSampleTop(const DeviceContext& context,
                             const SampleParams& params,
                             const uint32_t* maxima) {
  return Launch(context,
                {.kernel = "sample_top",
                 .grid = static_cast<unsigned>(std::min<int64_t>(params.rows, kMaxTopRows)),
                 .block = kTopThreads},
                TopKernel,
                params,
                maxima);
}

}  // namespace pagoda::kernels::cuda
