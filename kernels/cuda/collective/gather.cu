#include <algorithm>
#include <cstdint>

#include "kernels/cuda/collective/gather.h"
#include "kernels/cuda/collective/peer_exchange.cuh"
#include "kernels/cuda/launch.h"

// Any bytes may be sent here, so slots cannot tell by their content whether data have come: a block
// sends a piece to its like on every other rank, then the piece's number; it waits for the numbers
// of the others and copies. Slots take turns: a rank that has the others' piece n knows that they
// have copied its piece n - 1.

namespace pagoda::kernels::cuda {
namespace {

constexpr int kThreads = 512;

// Units of a gather: bytes, words or vectors, whichever all addresses and lengths are made of.
template <typename Unit>
struct Rows {
  const GatherArgs& a;

  static __device__ __forceinline__ int64_t Units(int64_t num_bytes) {
    return num_bytes / static_cast<int64_t>(sizeof(Unit));
  }
  // Where unit `i` of what `sender` sends belongs; null: it is left out.
  __device__ __forceinline__ Unit* Place(int sender, int64_t i) const {
    // Of 32 bits: a division of 64 is slow.
    const uint32_t unit = static_cast<uint32_t>(i);
    const uint32_t row_units = static_cast<uint32_t>(Units(a.row_bytes));
    const uint32_t row = unit / row_units;
    const int64_t column = int64_t{a.root < 0 ? sender : 0} * row_units + unit % row_units;
    if (column >= Units(a.y_row_bytes)) return nullptr;
    return reinterpret_cast<Unit*>(a.y + row * a.y_stride_bytes) + column;
  }
};

template <typename Unit>
__device__ __forceinline__ Unit* GatherSlot(const PeerView& view,
                                            int receiver,
                                            int sender,
                                            uint32_t piece) {
  return reinterpret_cast<Unit*>(
      view.gather_slots[receiver] + piece % 2 * view.gather_parity_bytes +
      (uint64_t{blockIdx.x} * view.num_ranks + sender) * view.gather_piece_bytes);
}

template <typename Unit>
__global__ void __launch_bounds__(kThreads, 1) GatherKernel(const __grid_constant__ GatherArgs a) {
  __shared__ bool gave_up;
  LaunchNext();
  WaitForPrevious();
  const PeerView& view = a.view;
  PeerControl* const own = view.controls[view.rank];
  uint32_t piece = LoadRelaxed(&own->pieces[blockIdx.x]);
  Watch watch(view);
  if (threadIdx.x == 0) gave_up = !MayBegin(view, LoadRelaxed(&own->failure));
  __syncthreads();
  const Rows<Unit> rows{a};
  const Unit* const x = reinterpret_cast<const Unit*>(a.x);
  const int64_t total = a.rows * Rows<Unit>::Units(a.row_bytes);
  const int64_t piece_units = Rows<Unit>::Units(static_cast<int64_t>(view.gather_piece_bytes));
  for (int64_t begin = blockIdx.x * piece_units; begin < total && !gave_up;
       begin += gridDim.x * piece_units) {
    const int64_t count = min(piece_units, total - begin);
    ++piece;
    if (x != nullptr) {
      for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
        const Unit v = x[begin + i];
        for (int k = 1; k < view.num_ranks; ++k) {
          const int peer = (view.rank + k) % view.num_ranks;
          GatherSlot<Unit>(view, peer, view.rank, piece)[i] = v;
        }
        Unit* const to = rows.Place(view.rank, begin + i);
        if (to != nullptr) *to = v;
      }
    }
    __syncthreads();
    const int peer = threadIdx.x;
    if (peer < view.num_ranks && peer != view.rank) {
      __threadfence_system();
      StoreRelease(&view.controls[peer]->arrived[blockIdx.x][view.rank], piece);
      // Numbers wrap around.
      const auto is_there = [&] {
        return static_cast<int32_t>(LoadAcquire(&own->arrived[blockIdx.x][peer]) - piece) >= 0;
      };
      while (!is_there()) {
        if (!watch.GivesUp(peer)) continue;
        gave_up = true;
        break;
      }
    }
    __syncthreads();
    if (gave_up) break;
    for (int k = 1; k < view.num_ranks; ++k) {
      const int sender = (view.rank + k) % view.num_ranks;
      if (a.root >= 0 && sender != a.root) continue;
      const Unit* const slot = GatherSlot<Unit>(view, view.rank, sender, piece);
      for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
        Unit* const to = rows.Place(sender, begin + i);
        if (to != nullptr) *to = __ldcv(slot + i);
      }
    }
    // All is copied before this block's next number says so.
    __syncthreads();
  }
  if (threadIdx.x == 0) own->pieces[blockIdx.x] = piece;
}

template <typename Unit>
absl::Status LaunchUnits(const DeviceContext& context, const GatherArgs& args, bool programmatic) {
  const int64_t piece_bytes = static_cast<int64_t>(args.view.gather_piece_bytes);
  const int64_t pieces = (args.rows * args.row_bytes + piece_bytes - 1) / piece_bytes;
  return Launch({.kernel = "all_gather",
                 .grid = dim3(static_cast<unsigned>(std::min<int64_t>(pieces, kNumGatherBlocks))),
                 .block = dim3(kThreads),
                 .programmatic = programmatic},
                context.stream,
                &GatherKernel<Unit>,
                args);
}

}  // namespace

absl::Status LaunchGather(const DeviceContext& context, const GatherArgs& args, bool programmatic) {
  const uint64_t all =
      reinterpret_cast<uint64_t>(args.x) | reinterpret_cast<uint64_t>(args.y) |
      static_cast<uint64_t>(args.row_bytes | args.y_row_bytes | args.y_stride_bytes);
  if (all % sizeof(uint4) == 0) return LaunchUnits<uint4>(context, args, programmatic);
  if (all % sizeof(uint32_t) == 0) return LaunchUnits<uint32_t>(context, args, programmatic);
  return LaunchUnits<unsigned char>(context, args, programmatic);
}

}  // namespace pagoda::kernels::cuda
