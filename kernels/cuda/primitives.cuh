#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Device-side building blocks shared by the ops: 16-byte vectors, dependent launch, bulk copies,
// mbarriers, reductions.

namespace pagoda::kernels::cuda {

using bf16 = __nv_bfloat16;
using fp16 = __half;

inline constexpr unsigned kFullWarp = 0xffffffffu;
inline constexpr int kVector = 8;  // 16-bit elements of one 16-byte access

inline bool Aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// ---- Programmatic dependent launch. Every kernel launched with it calls WaitForPrevious in all
// its threads before it touches what other kernels write or read, and before it exits; only then is
// "the kernel before me has ended" transitive along the stream.

// What the kernels before wrote is visible after this. Compiled as an acquire: ordinary loads after
// it are fresh.
__device__ __forceinline__ void WaitForPrevious() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// The next kernel of the stream may be scheduled once every block has said so (or ended); it is no
// fence.
__device__ __forceinline__ void LaunchNext() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// ---- Loads. Activations are never read through the read-only path (ld.global.nc): a kernel that
// starts before its producer has ended may not call them constant.

// Weights: read once, so they do not push anything out of the L1.
__device__ __forceinline__ uint4 LoadWeights16(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// Streams that are read once, written by the kernel before.
__device__ __forceinline__ float4 LoadStream16(const float* p) {
  float4 v;
  asm volatile("ld.global.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

// ---- Conversion of two packed 16-bit floats, lower address first.

template <typename T>
__device__ __forceinline__ float2 Unpack2(uint32_t packed);

template <>
__device__ __forceinline__ float2 Unpack2<bf16>(uint32_t packed) {
  return {__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u)};
}
template <>
__device__ __forceinline__ float2 Unpack2<fp16>(uint32_t packed) {
  return __half22float2(*reinterpret_cast<const __half2*>(&packed));
}

template <typename T>
__device__ __forceinline__ uint32_t Pack2(float lo, float hi);

template <>
__device__ __forceinline__ uint32_t Pack2<bf16>(float lo, float hi) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  return *reinterpret_cast<const uint32_t*>(&v);
}
template <>
__device__ __forceinline__ uint32_t Pack2<fp16>(float lo, float hi) {
  const __half2 v = __floats2half2_rn(lo, hi);
  return *reinterpret_cast<const uint32_t*>(&v);
}

template <typename T>
__device__ __forceinline__ float ToFloat(T v) {
  return static_cast<float>(v);
}
template <typename T>
__device__ __forceinline__ T FromFloat(float v);
template <>
__device__ __forceinline__ bf16 FromFloat<bf16>(float v) {
  return __float2bfloat16_rn(v);
}
template <>
__device__ __forceinline__ fp16 FromFloat<fp16>(float v) {
  return __float2half_rn(v);
}
template <>
__device__ __forceinline__ float FromFloat<float>(float v) {
  return v;
}

// Eight 16-bit elements of one 16-byte vector.
template <typename T>
__device__ __forceinline__ void Unpack8(const uint4& v, float (&f)[8]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = Unpack2<T>(words[i]);
    f[2 * i] = pair.x;
    f[2 * i + 1] = pair.y;
  }
}
template <typename T>
__device__ __forceinline__ uint4 Pack8(const float (&f)[8]) {
  return {Pack2<T>(f[0], f[1]), Pack2<T>(f[2], f[3]), Pack2<T>(f[4], f[5]), Pack2<T>(f[6], f[7])};
}

// ---- Reductions.

__device__ __forceinline__ float WarpSum(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(kFullWarp, v, offset);
  return v;
}

// Sum over the block, given to every thread. `scratch` has 32 floats; the caller separates two uses
// of one scratch by
// __syncthreads.
__device__ __forceinline__ float BlockSum(float v, float* scratch) {
  v = WarpSum(v);
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  if (lane == 0) scratch[warp] = v;
  __syncthreads();
  const int num_warps = (blockDim.x + 31) >> 5;
  return WarpSum(lane < num_warps ? scratch[lane] : 0.0f);
}

// ---- Shared-memory addresses, mbarriers and the bulk copy engine.

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void BarrierInit(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}

// Makes BarrierInit visible to the copy engine; called by the initialising thread before the
// block's barrier.
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// One arrival that announces `bytes` to come.
__device__ __forceinline__ void BarrierExpect(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}

// Blocks until the phase of the given parity has completed.
__device__ __forceinline__ void BarrierWait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}

// Copies `bytes` (a multiple of 16, both addresses 16-byte aligned) from global to this block's
// shared memory; `barrier` receives the count when they have landed.
__device__ __forceinline__ void BulkLoad(void* shared,
                                         const void* global,
                                         uint32_t bytes,
                                         uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(SharedAddress(shared)),
      "l"(global),
      "r"(bytes),
      "r"(SharedAddress(barrier))
      : "memory");
}

// The same for weights read once: the L2 evicts them first, so that activations and KV stay.
__device__ __forceinline__ uint64_t EvictFirstPolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void BulkLoadOnce(
    void* shared, const void* global, uint32_t bytes, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(SharedAddress(shared)),
      "l"(global),
      "r"(bytes),
      "r"(SharedAddress(barrier)),
      "l"(policy)
      : "memory");
}

// ---- Copies of 16 bytes by each thread (cp.async), in commit groups.

// Zero-fills when `valid` is false, without reading.
__device__ __forceinline__ void AsyncCopy16(void* shared, const void* global, bool valid) {
  asm volatile(
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)),
      "l"(global),
      "r"(valid ? 16 : 0)
      : "memory");
}
__device__ __forceinline__ void AsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void AsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace pagoda::kernels::cuda
