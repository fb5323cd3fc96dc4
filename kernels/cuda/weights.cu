#include <algorithm>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/primitives.cuh"
#include "kernels/cuda/weights.h"
#include "kernels/ops/normal.h"

// Kernels that write weights. None is let in early and none lets the next one in: readers of
// weights do not wait.

namespace pagoda::kernels::cuda {
namespace {

constexpr int kWeightThreads = 256;
constexpr int kPerThread = 8;  // one 16-byte store

// Elements 4 * block .. 4 * block + 3 of the stream, by the arithmetic of NormalFromPhilox.
__device__ __forceinline__ void NormalBlock(uint64_t seed,
                                            uint64_t block,
                                            float stddev,
                                            float* out) {
  const PhiloxBlock bits = Philox4x32(seed, block, kNormalStream);
#pragma unroll
  for (int pair = 0; pair < 4; pair += 2) {
    const float radius = sqrtf(-2.0f * logf(UniformFromBits(bits.word[pair])));
    const float angle = 6.2831853f * UniformFromBits(bits.word[pair + 1]);
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
    out[pair] = stddev * (radius * cosine);
    out[pair + 1] = stddev * (radius * sine);
  }
}

// Number of element i in the stream.
__device__ __forceinline__ uint64_t IndexOf(const NormalFill& fill, int64_t i) {
  if (fill.width == 0) return fill.first_index + i;
  return fill.first_index + i / fill.width * fill.row_stride + i % fill.width;
}

// REQUIRES: first_index and row_stride are multiples of 4 and width of 8, data 16-byte aligned.
template <typename T>
__global__ void FillNormalKernel(const __grid_constant__ NormalFill fill) {
  T* data = static_cast<T*>(fill.data);
  const int64_t step = int64_t{gridDim.x} * kWeightThreads * kPerThread;
  for (int64_t i = (int64_t{blockIdx.x} * kWeightThreads + threadIdx.x) * kPerThread;
       i < fill.count;
       i += step) {
    float values[kPerThread];
    const uint64_t block = IndexOf(fill, i) / 4;
    NormalBlock(fill.seed, block, fill.stddev, values);
    NormalBlock(fill.seed, block + 1, fill.stddev, values + 4);
    if (i + kPerThread <= fill.count) {
      *reinterpret_cast<uint4*>(data + i) = Pack8<T>(values);
    } else {
      for (int j = 0; i + j < fill.count; ++j) data[i + j] = FromFloat<T>(values[j]);
    }
  }
}

// Any index and alignment.
template <typename T>
__global__ void FillNormalScalarKernel(const __grid_constant__ NormalFill fill) {
  T* data = static_cast<T*>(fill.data);
  const int64_t step = int64_t{gridDim.x} * kWeightThreads;
  for (int64_t i = int64_t{blockIdx.x} * kWeightThreads + threadIdx.x; i < fill.count; i += step) {
    data[i] = FromFloat<T>(fill.stddev * NormalFromPhilox(fill.seed, IndexOf(fill, i)));
  }
}

template <typename From, typename To>
__global__ void ConvertKernel(const From* from, To* to, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * kWeightThreads;
  for (int64_t i = int64_t{blockIdx.x} * kWeightThreads + threadIdx.x; i < count; i += step) {
    to[i] = FromFloat<To>(ToFloat(from[i]));
  }
}

unsigned WeightBlocksFor(const DeviceContext& context, int64_t count, int per_thread) {
  const int64_t per_block = int64_t{kWeightThreads} * per_thread;
  return static_cast<unsigned>(
      std::min((count + per_block - 1) / per_block, int64_t{context.num_sms} * 8));
}

template <typename From, typename To>
absl::Status LaunchConvert(const DeviceContext& context,
                           const void* from,
                           void* to,
                           int64_t count) {
  return Launch({.kernel = "convert_weights",
                 .grid = WeightBlocksFor(context, count, 4),
                 .block = kWeightThreads},
                context.stream,
                ConvertKernel<From, To>,
                static_cast<const From*>(from),
                static_cast<To*>(to),
                count);
}

}  // namespace

absl::Status FillNormal(const DeviceContext& context, const NormalFill& fill) {
  if (fill.count == 0) return absl::OkStatus();
  const bool vectors = fill.first_index % 4 == 0 && fill.width % kPerThread == 0 &&
                       fill.row_stride % 4 == 0 &&
                       reinterpret_cast<uintptr_t>(fill.data) % 16 == 0;
  context.weights_written = true;
  return DispatchDType(fill.dtype, "fill_normal", [&]<typename T>() {
    return Launch({.kernel = "fill_normal",
                   .grid = WeightBlocksFor(context, fill.count, vectors ? kPerThread : 1),
                   .block = kWeightThreads},
                  context.stream,
                  vectors ? FillNormalKernel<T> : FillNormalScalarKernel<T>,
                  fill);
  });
}

absl::Status ConvertElements(const DeviceContext& context,
                             DType from_dtype,
                             const void* from,
                             DType to_dtype,
                             void* to,
                             int64_t count) {
  if (count == 0) return absl::OkStatus();
  context.weights_written = true;
  return DispatchDType(to_dtype, "pack_linear", [&]<typename To>() {
    switch (from_dtype) {
      case DType::kFloat32:
        return LaunchConvert<float, To>(context, from, to, count);
      case DType::kBFloat16:
        return LaunchConvert<bf16, To>(context, from, to, count);
      case DType::kFloat16:
        return LaunchConvert<fp16, To>(context, from, to, count);
      default:
        return UnsupportedError("pack_linear", "weights of int32");
    }
  });
}

}  // namespace pagoda::kernels::cuda
