#include <algorithm>
#include <cstdint>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/layers.h"
#include "kernels/cuda/primitives.cuh"

// Row-wise ops that not every architecture has. Each thread works on vectors of 16 bytes where rows
// are so aligned, else on elements: one kernel for both, by the type of its unit.

namespace pagoda::kernels::cuda {
namespace {

// What a thread reads and writes at once: kCount elements of T.
template <typename T, int kCount>
struct Unit;

template <typename T>
struct Unit<T, kVector> {
  static __device__ __forceinline__ void Load(const T* p, float (&f)[kVector]) {
    Unpack8<T>(*reinterpret_cast<const uint4*>(p), f);
  }
  static __device__ __forceinline__ void Store(const float (&f)[kVector], T* p) {
    *reinterpret_cast<uint4*>(p) = Pack8<T>(f);
  }
};
template <typename T>
struct Unit<T, 1> {
  static __device__ __forceinline__ void Load(const T* p, float (&f)[1]) { f[0] = ToFloat(*p); }
  static __device__ __forceinline__ void Store(const float (&f)[1], T* p) {
    *p = FromFloat<T>(f[0]);
  }
};

// ---- add_embedding. One block a row.

template <typename T, int kCount>
__global__ void AddEmbeddingKernel(const __grid_constant__ EmbeddingParams p) {
  LaunchNext();
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  const int64_t wanted = int64_t{p.tokens[row]} - p.first_id;
  const int64_t token = min(max(wanted, int64_t{0}), p.table.n - 1);
  if (p.is_part && token != wanted) return;
  const T* source = static_cast<const T*>(p.table.data) + token * p.table.k;
  T* out = static_cast<T*>(p.y) + row * p.table.k;
  for (int i = threadIdx.x * kCount; i < p.table.k; i += blockDim.x * kCount) {
    float value[kCount], sum[kCount];
    Unit<T, kCount>::Load(source + i, value);
    Unit<T, kCount>::Load(out + i, sum);
#pragma unroll
    for (int j = 0; j < kCount; ++j) sum[j] += value[j] * p.scale;
    Unit<T, kCount>::Store(sum, out + i);
  }
}

// ---- layer_norm. One block a row; the row is read three times, the last two from the L1.

template <typename T, int kCount>
__global__ void LayerNormKernel(const __grid_constant__ LayerNormParams p) {
  __shared__ float sum_scratch[32], square_scratch[32];
  LaunchNext();
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
  T* y = static_cast<T*>(p.y) + row * p.y_stride;
  const int first = threadIdx.x * kCount, step = blockDim.x * kCount;
  float value[kCount];
  float sum = 0.0f;
  for (int i = first; i < p.width; i += step) {
    Unit<T, kCount>::Load(x + i, value);
#pragma unroll
    for (float v : value) sum += v;
  }
  const float mean = BlockSum(sum, sum_scratch) / static_cast<float>(p.width);
  float squares = 0.0f;
  for (int i = first; i < p.width; i += step) {
    Unit<T, kCount>::Load(x + i, value);
#pragma unroll
    for (float v : value) squares += (v - mean) * (v - mean);
  }
  const float variance = BlockSum(squares, square_scratch) / static_cast<float>(p.width);
  const float factor = rsqrtf(variance + p.epsilon);
  for (int i = first; i < p.width; i += step) {
    Unit<T, kCount>::Load(x + i, value);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      value[j] = (value[j] - mean) * factor * p.weight[i + j];
      if (p.bias != nullptr) value[j] += p.bias[i + j];
    }
    Unit<T, kCount>::Store(value, y + i);
  }
}

// ---- head_norm. One warp a head of one row.

template <typename T, int kCount>
__global__ void HeadNormKernel(const __grid_constant__ HeadNormParams p) {
  LaunchNext();
  WaitForPrevious();
  const int num_heads = p.num_q_heads + p.num_kv_heads;
  const int64_t warp = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) >> 5;
  if (warp >= p.rows * num_heads) return;
  const int head = static_cast<int>(warp % num_heads);
  T* x = static_cast<T*>(p.qkv) + warp / num_heads * p.qkv_stride + int64_t{head} * p.head_dim;
  const float* weight = head < p.num_q_heads ? p.q_weight : p.k_weight;
  const int first = (threadIdx.x & 31) * kCount;
  float value[kCount];
  float squares = 0.0f;
  for (int i = first; i < p.head_dim; i += 32 * kCount) {
    Unit<T, kCount>::Load(x + i, value);
#pragma unroll
    for (float v : value) squares += v * v;
  }
  const float factor = rsqrtf(WarpSum(squares) / static_cast<float>(p.head_dim) + p.epsilon);
  for (int i = first; i < p.head_dim; i += 32 * kCount) {
    Unit<T, kCount>::Load(x + i, value);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      value[j] = value[j] * factor * (weight[i + j] + p.weight_offset);
    }
    Unit<T, kCount>::Store(value, x + i);
  }
}

// ---- activate

template <Activation kKind>
__device__ __forceinline__ float ActivationOf(float x) {
  if constexpr (kKind == Activation::kSilu) {
    return __fdividef(x, 1.0f + __expf(-x));
  } else if constexpr (kKind == Activation::kGelu) {
    return 0.5f * x * (1.0f + erff(x * 0.70710678f));
  } else {
    return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
  }
}

template <typename T, int kCount, Activation kKind>
__global__ void ActivateKernel(const __grid_constant__ ActivateParams p) {
  LaunchNext();
  WaitForPrevious();
  const int64_t units_per_row = p.width / kCount;
  const int64_t total = p.rows * units_per_row;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += step) {
    // Rows of x are twice as long where they hold a gate.
    const int64_t at = p.gated ? i + i / units_per_row * units_per_row : i;
    const T* x = static_cast<const T*>(p.x) + at * kCount;
    float value[kCount];
    Unit<T, kCount>::Load(x, value);
#pragma unroll
    for (float& v : value) v = ActivationOf<kKind>(v);
    if (p.gated) {
      float up[kCount];
      Unit<T, kCount>::Load(x + p.width, up);
#pragma unroll
      for (int j = 0; j < kCount; ++j) value[j] *= up[j];
    }
    Unit<T, kCount>::Store(value, static_cast<T*>(p.y) + i * kCount);
  }
}

// ---- add_scaled

template <typename T, int kCount>
__global__ void AddScaledKernel(const __grid_constant__ AddScaledParams p) {
  LaunchNext();
  WaitForPrevious();
  const int64_t step = int64_t{gridDim.x} * blockDim.x * kCount;
  int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kCount;
  for (; i < p.count; i += step) {
    float value[kCount], sum[kCount];
    Unit<T, kCount>::Load(static_cast<const T*>(p.x) + i, value);
    Unit<T, kCount>::Load(static_cast<const T*>(p.y) + i, sum);
#pragma unroll
    for (int j = 0; j < kCount; ++j) sum[j] += value[j] * p.scale;
    Unit<T, kCount>::Store(sum, static_cast<T*>(p.y) + i);
  }
}

// ---- adjust_logits

__global__ void AdjustLogitsKernel(const __grid_constant__ AdjustLogitsParams p) {
  LaunchNext();
  WaitForPrevious();
  float* logits = p.logits + blockIdx.y * p.stride;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.width; i += step) {
    const float v = logits[i] * p.scale;
    logits[i] = p.soft_cap > 0.0f ? p.soft_cap * tanhf(v / p.soft_cap) : v;
  }
}

// ---- Launch configurations.

// Blocks of kLayerThreads over `total` units: enough to fill every SM's threads twice.
constexpr int kLayerThreads = 256;
unsigned BlocksFor(const DeviceContext& context, int64_t total) {
  const int64_t most = int64_t{context.num_sms} * 16;
  return static_cast<unsigned>(std::min((total + kLayerThreads - 1) / kLayerThreads, most));
}

// Threads of a block that has one row of `units` units.
unsigned ThreadsFor(int64_t units) {
  return static_cast<unsigned>(std::min<int64_t>((units + 31) / 32 * 32, 1024));
}

// Calls fn.template operator()<kCount>() for vectors, or for elements.
template <typename Fn>
absl::Status ByUnit(bool vectors, Fn&& fn) {
  if (vectors) return fn.template operator()<kVector>();
  return fn.template operator()<1>();
}

template <typename Fn>
absl::Status ByActivation(Activation activation, Fn&& fn) {
  switch (activation) {
    case Activation::kSilu:
      return fn.template operator()<Activation::kSilu>();
    case Activation::kGelu:
      return fn.template operator()<Activation::kGelu>();
    case Activation::kGeluTanh:
      break;
  }
  return fn.template operator()<Activation::kGeluTanh>();
}

}  // namespace

absl::Status AddEmbedding(const DeviceContext& context, const EmbeddingParams& p) {
  if (p.rows == 0) return absl::OkStatus();
  if (p.table.format != WeightFormat::kRowMajor || p.table.dtype != p.y_dtype) {
    return UnsupportedError("add_embedding", "the table must be row-major and of the type of y");
  }
  const bool vectors = p.table.k % kVector == 0 && Aligned16(p.table.data) && Aligned16(p.y);
  return DispatchDType(p.y_dtype, "add_embedding", [&]<typename T>() {
    return ByUnit(vectors, [&]<int kCount>() {
      return Launch(context,
                    {.kernel = "add_embedding",
                     .grid = static_cast<unsigned>(p.rows),
                     .block = ThreadsFor(p.table.k / kCount)},
                    AddEmbeddingKernel<T, kCount>,
                    p);
    });
  });
}

absl::Status LayerNorm(const DeviceContext& context, const LayerNormParams& p) {
  if (p.rows == 0) return absl::OkStatus();
  const bool vectors = p.width % kVector == 0 && p.x_stride % kVector == 0 &&
                       p.y_stride % kVector == 0 && Aligned16(p.x) && Aligned16(p.y);
  return DispatchDType(p.dtype, "layer_norm", [&]<typename T>() {
    return ByUnit(vectors, [&]<int kCount>() {
      return Launch(context,
                    {.kernel = "layer_norm",
                     .grid = static_cast<unsigned>(p.rows),
                     .block = ThreadsFor(p.width / kCount)},
                    LayerNormKernel<T, kCount>,
                    p);
    });
  });
}

absl::Status HeadNorm(const DeviceContext& context, const HeadNormParams& p) {
  if (p.rows == 0) return absl::OkStatus();
  const bool vectors = p.head_dim % kVector == 0 && p.qkv_stride % kVector == 0 && Aligned16(p.qkv);
  const int64_t threads = p.rows * (p.num_q_heads + p.num_kv_heads) * 32;
  const auto blocks = static_cast<unsigned>((threads + kLayerThreads - 1) / kLayerThreads);
  return DispatchDType(p.dtype, "head_norm", [&]<typename T>() {
    return ByUnit(vectors, [&]<int kCount>() {
      return Launch(context,
                    {.kernel = "head_norm", .grid = blocks, .block = kLayerThreads},
                    HeadNormKernel<T, kCount>,
                    p);
    });
  });
}

absl::Status Activate(const DeviceContext& context, const ActivateParams& p) {
  if (p.rows == 0) return absl::OkStatus();
  const bool vectors = p.width % kVector == 0 && Aligned16(p.x) && Aligned16(p.y);
  return DispatchDType(p.dtype, "activate", [&]<typename T>() {
    return ByUnit(vectors, [&]<int kCount>() {
      return ByActivation(p.activation, [&]<Activation kKind>() {
        return Launch(context,
                      {.kernel = "activate",
                       .grid = BlocksFor(context, p.rows * (p.width / kCount)),
                       .block = kLayerThreads},
                      ActivateKernel<T, kCount, kKind>,
                      p);
      });
    });
  });
}

absl::Status AddScaled(const DeviceContext& context, const AddScaledParams& p) {
  if (p.count == 0) return absl::OkStatus();
  const bool vectors = p.count % kVector == 0 && Aligned16(p.x) && Aligned16(p.y);
  return DispatchDType(p.dtype, "add_scaled", [&]<typename T>() {
    return ByUnit(vectors, [&]<int kCount>() {
      return Launch(context,
                    {.kernel = "add_scaled",
                     .grid = BlocksFor(context, p.count / kCount),
                     .block = kLayerThreads},
                    AddScaledKernel<T, kCount>,
                    p);
    });
  });
}

absl::Status AdjustLogits(const DeviceContext& context, const AdjustLogitsParams& p) {
  if (p.rows == 0) return absl::OkStatus();
  // The other limit of a grid is far above any number of rows.
  constexpr int64_t kMaxRows = 65535;
  if (p.rows > kMaxRows) return UnsupportedError("adjust_logits", "more than 65535 rows");
  return Launch(context,
                {.kernel = "adjust_logits",
                 .grid = dim3(BlocksFor(context, p.width), static_cast<unsigned>(p.rows)),
                 .block = kLayerThreads},
                AdjustLogitsKernel,
                p);
}

}  // namespace pagoda::kernels::cuda
