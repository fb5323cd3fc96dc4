#pragma once

#include <cstdint>

#include "kernels/cuda/collective/peer_view.h"
#include "kernels/cuda/primitives.cuh"

// How ranks hand data to each other. A rank stores into its peers' slots (a store needs no answer,
// a load would be a round trip). A slot holds kEmpty until data come, which never hold it: no flag,
// no fence and no barrier, and each 32-bit word tells of itself, so nothing larger need arrive
// whole. Whoever has read a slot empties it.
//
// Two sets of slots take turns. A rank fills the set of epoch e + 2 after it has read what all sent
// in e + 1, which they did after their kernel of epoch e had ended, emptied slots included.

namespace pagoda::kernels::cuda {

// A NaN in every type; data that are this NaN travel as another one.
inline constexpr uint32_t kEmpty = 0xffffffffu;
inline constexpr uint32_t kOtherNaN = 0x7fff7fffu;

__device__ __forceinline__ uint4 EmptyVector() { return {kEmpty, kEmpty, kEmpty, kEmpty}; }
__device__ __forceinline__ bool IsComplete(const uint4& v) {
  return v.x != kEmpty && v.y != kEmpty && v.z != kEmpty && v.w != kEmpty;
}
__device__ __forceinline__ uint4 Sendable(const uint4& v) {
  const auto word = [](uint32_t w) { return w == kEmpty ? kOtherNaN : w; };
  return {word(v.x), word(v.y), word(v.z), word(v.w)};
}

// ---- Accesses that other devices see.

__device__ __forceinline__ uint4 LoadSlot(const uint4* slot) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(slot)
               : "memory");
  return v;
}
__device__ __forceinline__ void StoreSlot(uint4* slot, const uint4& v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(slot),
               "r"(v.x),
               "r"(v.y),
               "r"(v.z),
               "r"(v.w)
               : "memory");
}
__device__ __forceinline__ uint32_t LoadRelaxed(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t LoadAcquire(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void StoreRelaxed(uint32_t* p, uint32_t v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void StoreRelease(uint32_t* p, uint32_t v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ uint64_t GlobalTimeNs() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// ---- Giving up.

__device__ __forceinline__ uint32_t EncodeFault(CollectiveFault fault, int rank) {
  return static_cast<uint32_t>(fault) | static_cast<uint32_t>(rank) << 8;
}

// Lets the host know, once.
__device__ __noinline__ inline void ReportFailure(const PeerView& view, uint32_t failure) {
  PeerControl* const own = view.controls[view.rank];
  if (atomicExch(&own->reported, 1u) != 0) return;
  StoreRelaxed(&view.host->epoch, own->epochs[blockIdx.x % kMaxReduceBlocks]);
  StoreRelease(&view.host->failure, failure);
}

// Ends this rank's collectives and those of its peers.
__device__ __noinline__ inline void Fail(const PeerView& view, CollectiveFault fault, int rank) {
  const uint32_t failure = EncodeFault(fault, rank);
  if (atomicCAS_system(&view.controls[view.rank]->failure, 0u, failure) != 0) return;
  ReportFailure(view, failure);
  for (int peer = 0; peer < view.num_ranks; ++peer) {
    if (peer == view.rank) continue;
    StoreRelaxed(&view.controls[peer]->failure, EncodeFault(CollectiveFault::kTold, view.rank));
  }
}

// A wait of one thread for other ranks, which ends: when a rank is too late, when the host aborts,
// when another rank has given up. Looks seldom, so that what is waited for costs nothing more.
class Watch {
 public:
  __device__ explicit Watch(const PeerView& view) : view_(view) {}

  // Call after each vain look at a slot of `peer`.
  __device__ __forceinline__ bool GivesUp(int peer) {
    if (++num_spins_ < next_look_) return false;
    return Look(peer);
  }

 private:
  // The first look after some 100 us; then less and less often, down to some milliseconds.
  static constexpr uint32_t kFirstLook = 256;
  static constexpr uint32_t kLongestPause = 8192;
  // Before the host is asked.
  static constexpr uint64_t kPatienceNs = 1'000'000;

  __device__ __noinline__ bool Look(int peer) {
    next_look_ = num_spins_ + min(num_spins_, kLongestPause);
    const uint32_t failure = LoadRelaxed(&view_.controls[view_.rank]->failure);
    if (failure != 0) {
      ReportFailure(view_, failure);
      return true;
    }
    const uint64_t now_ns = GlobalTimeNs();
    if (begin_ns_ == 0) begin_ns_ = now_ns;
    if (now_ns - begin_ns_ < kPatienceNs) return false;
    if (MayAskHost(now_ns) && LoadRelaxed(&view_.host->abort) != 0) {
      Fail(view_, CollectiveFault::kAborted, view_.rank);
      return true;
    }
    if (now_ns - begin_ns_ < view_.timeout_ns) return false;
    Fail(view_, CollectiveFault::kTimeout, peer);
    return true;
  }

  // One thread of the device at a time: host memory gives some million answers a second, so that
  // thousands of warps that ask lose a millisecond, for which the other ranks wait and ask in turn.
  __device__ bool MayAskHost(uint64_t now_ns) {
    uint32_t* const asked = &view_.controls[view_.rank]->asked_host_ms;
    const uint32_t now_ms = static_cast<uint32_t>(now_ns / 1'000'000);
    const uint32_t asked_ms = LoadRelaxed(asked);
    return asked_ms != now_ms && atomicCAS(asked, asked_ms, now_ms) == asked_ms;
  }

  const PeerView& view_;
  uint64_t begin_ns_ = 0;
  uint32_t num_spins_ = 0;
  uint32_t next_look_ = kFirstLook;
};

// Whether a kernel may begin, by the failure that its rank has had: false where an earlier one gave
// up.
__device__ __forceinline__ bool MayBegin(const PeerView& view, uint32_t failure) {
  if (failure == 0) return true;
  if (threadIdx.x == 0) ReportFailure(view, failure);
  return false;
}

}  // namespace pagoda::kernels::cuda
