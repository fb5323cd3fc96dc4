#pragma once

#include "kernels/cuda/linear/gemm_args.h"
#include "kernels/cuda/primitives.cuh"

// Parts that the kernels of kernels/cuda/linear share.

namespace pagoda::kernels::cuda {

__device__ __forceinline__ float Silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// What is added to a product: bias and residual of (row, column), read once the previous kernel has
// ended.
template <typename T>
__device__ __forceinline__ float Addend(const GemmArgs& a, int64_t row, int64_t column) {
  float value = a.bias != nullptr ? a.bias[column] : 0.0f;
  if (a.residual != nullptr) {
    const int64_t at = row * a.y_stride + column;
    value += a.y_is_float ? static_cast<const float*>(a.residual)[at]
                          : ToFloat(static_cast<const T*>(a.residual)[at]);
  }
  return value;
}

template <typename T>
__device__ __forceinline__ void StoreOutput(const GemmArgs& a,
                                            int64_t row,
                                            int64_t column,
                                            float value) {
  const int64_t at = row * a.y_stride + column;
  if (a.y_is_float) {
    static_cast<float*>(a.y)[at] = value;
  } else {
    static_cast<T*>(a.y)[at] = FromFloat<T>(value);
  }
}

// The norm's weights of one vector, read before the dependency wait where each thread of the block
// has one vector of a row at most; the others are brought closer.
struct EarlyNorm {
  bool whole = false;  // this thread's vector is all that it will need
  float weight[kVector];
};

__device__ __forceinline__ EarlyNorm LoadNormEarly(const GemmArgs& a) {
  EarlyNorm early;
  if (a.transform != InputTransform::kRmsNorm) return early;
  const int num_vectors = a.k / kVector;
  early.whole = num_vectors <= static_cast<int>(blockDim.x);
  if (early.whole) {
    const float4* w = reinterpret_cast<const float4*>(a.norm_weight) + 2 * threadIdx.x;
    const bool mine = static_cast<int>(threadIdx.x) < num_vectors;
    const float4 lo = mine ? __ldg(w) : float4{}, hi = mine ? __ldg(w + 1) : float4{};
    const float values[kVector] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
#pragma unroll
    for (int i = 0; i < kVector; ++i) early.weight[i] = values[i] + a.norm_offset;
    return early;
  }
  constexpr int kLineFloats = 32;
  for (int i = threadIdx.x * kLineFloats; i < a.k; i += blockDim.x * kLineFloats) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(a.norm_weight + i));
  }
  return early;
}

// Scales of the rows of a norm from each thread's sums of squares. `scratch` has kM * 32 floats.
template <int kM>
__device__ __forceinline__ void NormScales(const GemmArgs& a,
                                           const float (&sums)[kM],
                                           float* scratch,
                                           float (&scale)[kM]) {
  const int lane = threadIdx.x & 31;
  const int num_warps = blockDim.x >> 5;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const float sum = WarpSum(sums[m]);
    if (lane == 0) scratch[m * 32 + (threadIdx.x >> 5)] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const float sum = WarpSum(lane < num_warps ? scratch[m * 32 + lane] : 0.0f);
    scale[m] = rsqrtf(sum / static_cast<float>(a.k) + a.norm_epsilon);
  }
}

// StageInput of a norm whose weights are there, one vector a thread.
template <typename T, int kM>
__device__ __forceinline__ void StageNormed(const GemmArgs& a,
                                            const EarlyNorm& early,
                                            uint4* shared,
                                            float* scratch) {
  const int num_vectors = a.k / kVector;
  const int v = threadIdx.x;
  const bool mine = v < num_vectors;
  float f[kM][kVector] = {};
  float sums[kM] = {};
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const T* x = static_cast<const T*>(a.x) + m * a.x_stride;
    if (mine) Unpack8<T>(reinterpret_cast<const uint4*>(x)[v], f[m]);
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (const float value : f[m]) sums[m] += value * value;
  }
  float scale[kM];
  NormScales<kM>(a, sums, scratch, scale);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) f[m][i] = f[m][i] * scale[m] * early.weight[i];
    if (mine) shared[m * num_vectors + v] = Pack8<T>(f[m]);
  }
  __syncthreads();
}

// Brings the first kM rows of x, transformed, into `shared` ([kM][k / kVector]) with all threads of
// the block; ends with the block's barrier. `scratch` has kM * 32 floats. REQUIRES: WaitForPrevious
// was called.
template <typename T, int kM>
__device__ __forceinline__ void StageInput(const GemmArgs& a,
                                           const EarlyNorm& early,
                                           uint4* shared,
                                           float* scratch) {
  if (early.whole) return StageNormed<T, kM>(a, early, shared, scratch);
  const int num_vectors = a.k / kVector;
  const T* x = static_cast<const T*>(a.x);
  float sums[kM] = {};
  for (int v = threadIdx.x; v < num_vectors; v += blockDim.x) {
    uint4 rows[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      rows[m] = reinterpret_cast<const uint4*>(x + m * a.x_stride)[v];
    }
    if (a.transform == InputTransform::kSiluMul) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const uint4 second = reinterpret_cast<const uint4*>(x + m * a.x_stride + a.k)[v];
        float gate[kVector], up[kVector];
        Unpack8<T>(rows[m], gate);
        Unpack8<T>(second, up);
#pragma unroll
        for (int i = 0; i < kVector; ++i) gate[i] = Silu(gate[i]) * up[i];
        rows[m] = Pack8<T>(gate);
      }
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      shared[m * num_vectors + v] = rows[m];
      if (a.transform == InputTransform::kRmsNorm) {
        float f[kVector];
        Unpack8<T>(rows[m], f);
#pragma unroll
        for (float value : f) sums[m] += value * value;
      }
    }
  }
  if (a.transform == InputTransform::kRmsNorm) {
    float scale[kM];
    NormScales<kM>(a, sums, scratch, scale);
    // Each thread meets the vectors again that it wrote itself.
    for (int v = threadIdx.x; v < num_vectors; v += blockDim.x) {
      const float4* w = reinterpret_cast<const float4*>(a.norm_weight) + 2 * v;
      const float4 lo = w[0], hi = w[1];
      const float weight[kVector] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        float f[kVector];
        Unpack8<T>(shared[m * num_vectors + v], f);
#pragma unroll
        for (int i = 0; i < kVector; ++i) f[i] = f[i] * scale[m] * (weight[i] + a.norm_offset);
        shared[m * num_vectors + v] = Pack8<T>(f);
      }
    }
  }
  __syncthreads();
}

// acc[m] += dot(w, x[m]) over one vector of eight; two chains, so that additions do not wait for
// each other.
template <typename T, int kM>
__device__ __forceinline__ void DotVector(const uint4& w,
                                          const uint4* x,
                                          int64_t x_row_vectors,
                                          float (&acc)[kM][2]) {
  float wf[kVector];
  Unpack8<T>(w, wf);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    float xf[kVector];
    Unpack8<T>(x[m * x_row_vectors], xf);
#pragma unroll
    for (int i = 0; i < kVector; ++i) acc[m][i & 1] = fmaf(wf[i], xf[i], acc[m][i & 1]);
  }
}

}  // namespace pagoda::kernels::cuda
