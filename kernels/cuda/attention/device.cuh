#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/mma.cuh"

// What the attention kernels need of PTX, one function an instruction.

namespace pagoda::kernels::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;

// ---- Numbers.

template <typename T>
struct Number;

template <>
struct Number<__nv_bfloat16> {
  static __device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
  static __device__ __forceinline__ __nv_bfloat16 FromFloat(float x) {
    return __float2bfloat16_rn(x);
  }
  // `lo` in the lower half, as the tensor cores want neighbours.
  static __device__ __forceinline__ uint32_t Pack(float lo, float hi) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
    return packed;
  }
  static __device__ __forceinline__ float2 Unpack(uint32_t x) {
    return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
  }
};

template <>
struct Number<__half> {
  static __device__ __forceinline__ float ToFloat(__half x) { return __half2float(x); }
  static __device__ __forceinline__ __half FromFloat(float x) { return __float2half_rn(x); }
  static __device__ __forceinline__ uint32_t Pack(float lo, float hi) {
    uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
    return packed;
  }
  static __device__ __forceinline__ float2 Unpack(uint32_t x) {
    return __half22float2(*reinterpret_cast<const __half2*>(&x));
  }
};

// 2^x, 2 ulp; subnormal results are 0, 2^-inf = 0.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// tanh with an absolute error of 1e-6: tanh.approx (2^-11) would show in scores that a cap of 50
// multiplies.
__device__ __forceinline__ float Tanh(float x) {
  return 1.0f - __fdividef(2.0f, 1.0f + Exp2(2.0f * kLog2E * x));
}

// ---- Copies into shared memory.

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void CpAsync16(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global));
}

// Writes zeros and reads nothing when `valid` is false.
__device__ __forceinline__ void CpAsync16OrZero(uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared),
               "l"(global),
               "r"(valid ? 16 : 0));
}

__device__ __forceinline__ void CpAsyncCommit() { asm volatile("cp.async.commit_group;"); }

template <int kPending>
__device__ __forceinline__ void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- Programmatic dependent launch. Both do nothing in a kernel launched without it.

// Returns when the kernels before this one have ended and their writes are visible.
__device__ __forceinline__ void WaitForPreviousKernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Lets the next kernel begin. Called only after WaitForPreviousKernel, so that whatever was written
// before the kernel ahead of this one began is visible to the next from its first instruction.
__device__ __forceinline__ void AllowNextKernel() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// ---- Rows of 16-byte chunks in shared memory.

// Place of a chunk in its row so that 8 rows at one chunk touch all 32 banks, as ldmatrix reads
// them. Rows are kChunks * 16 bytes apart.
template <int kChunks>
__device__ __forceinline__ constexpr int SwizzledChunk(int row, int chunk) {
  static_assert(kChunks % 8 == 0 || kChunks == 12 || kChunks == 10);
  if constexpr (kChunks % 8 == 0) {
    return chunk ^ (row & 7);
  } else if constexpr (kChunks == 12) {
    return chunk ^ ((row >> 1) & 3);
  } else {
    return chunk ^ ((row >> 2) & 1);
  }
}

}  // namespace pagoda::kernels::cuda
