#include <algorithm>
#include <cstdint>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/primitives.cuh"

// Row-wise ops of a step. At decode each moves a few KB, so what counts is latency: one pass with
// the row in registers, constants loaded before the dependency wait, and the next kernel let in at
// once.

namespace pagoda::kernels::cuda {
namespace {

// ---- resolve_tokens

__global__ void ResolveTokensKernel(const __grid_constant__ ResolveTokensParams p) {
  LaunchNext();
  WaitForPrevious();
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= p.rows) return;
  const int32_t slot = p.source_slots[row];
  const bool from_device = slot >= 0 && slot < p.num_slots;
  p.tokens[row] = from_device ? p.last_tokens[slot] : p.host_tokens[row];
}

// ---- scatter

__global__ void ScatterKernel(const __grid_constant__ ScatterParams p) {
  LaunchNext();
  WaitForPrevious();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= p.count) return;
  const int64_t place = p.pairs[2 * i];
  if (place >= 0 && place < p.size) p.to[place] = p.pairs[2 * i + 1];
}

// ---- embedding

// Which row of the table a token has.
struct TableRow {
  int64_t row;
  bool is_there;

  __device__ __forceinline__ TableRow(const EmbeddingParams& p, int64_t i) {
    const int64_t wanted = int64_t{p.tokens[i]} - p.first_id;
    row = min(max(wanted, int64_t{0}), p.table.n - 1);
    is_there = !p.is_part || row == wanted;
  }
};

// One block a row. REQUIRES: hidden % kVector == 0, 16-byte aligned rows.
template <typename T>
__global__ void EmbeddingKernel(const __grid_constant__ EmbeddingParams p) {
  LaunchNext();
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  const TableRow token(p, row);
  const uint4* source = static_cast<const uint4*>(p.table.data) + token.row * (p.table.k / kVector);
  uint4* out = static_cast<uint4*>(p.y) + row * (p.table.k / kVector);
  for (int i = threadIdx.x; i < p.table.k / kVector; i += blockDim.x) {
    if (!token.is_there) {
      out[i] = uint4{};
      continue;
    }
    uint4 v = LoadWeights16(source + i);
    if (p.scale != 1.0f) {
      float f[kVector];
      Unpack8<T>(v, f);
#pragma unroll
      for (float& value : f) value *= p.scale;
      v = Pack8<T>(f);
    }
    out[i] = v;
  }
}

template <typename T>
__global__ void EmbeddingScalarKernel(const __grid_constant__ EmbeddingParams p) {
  LaunchNext();
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  const TableRow token(p, row);
  const T* source = static_cast<const T*>(p.table.data) + token.row * p.table.k;
  T* out = static_cast<T*>(p.y) + row * p.table.k;
  for (int i = threadIdx.x; i < p.table.k; i += blockDim.x) {
    out[i] = FromFloat<T>(token.is_there ? ToFloat(source[i]) * p.scale : 0.0f);
  }
}

// ---- gather_rows

template <typename Unit>
__global__ void GatherRowsKernel(const Unit* x, const int32_t* indices, Unit* y, int64_t units) {
  LaunchNext();
  WaitForPrevious();
  const Unit* source = x + indices[blockIdx.x] * units;
  Unit* out = y + blockIdx.x * units;
  for (int64_t i = threadIdx.x; i < units; i += blockDim.x) out[i] = source[i];
}

// ---- rms_norm

template <typename T>
__device__ __forceinline__ void ScaleRow(const uint4& x,
                                         const float (&weight)[kVector],
                                         float scale,
                                         uint4* out) {
  float f[kVector];
  Unpack8<T>(x, f);
#pragma unroll
  for (int i = 0; i < kVector; ++i) f[i] = f[i] * scale * weight[i];
  *out = Pack8<T>(f);
}

template <typename T>
__device__ __forceinline__ float SumOfSquares(const uint4& x) {
  float f[kVector];
  Unpack8<T>(x, f);
  float sum = 0.0f;
#pragma unroll
  for (float value : f) sum += value * value;
  return sum;
}

__device__ __forceinline__ void LoadNormWeight(const RmsNormParams& p,
                                               int vector,
                                               float (&weight)[kVector]) {
  const float4* w = reinterpret_cast<const float4*>(p.weight) + 2 * vector;
  const float4 a = __ldg(w), b = __ldg(w + 1);
  const float values[kVector] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < kVector; ++i) weight[i] = values[i] + p.weight_offset;
}

// One block a row, kVecs vectors a thread. REQUIRES: width <= blockDim.x * kVecs * kVector, 16-byte
// aligned rows.
template <typename T, int kVecs>
__global__ void RmsNormBlockKernel(const __grid_constant__ RmsNormParams p) {
  __shared__ float scratch[32];
  LaunchNext();
  const int num_vectors = p.width / kVector;
  float weight[kVecs][kVector];
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int v = threadIdx.x + i * blockDim.x;
    if (v < num_vectors) LoadNormWeight(p, v, weight[i]);
  }
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  const uint4* x = reinterpret_cast<const uint4*>(static_cast<const T*>(p.x) + row * p.x_stride);
  uint4* y = reinterpret_cast<uint4*>(static_cast<T*>(p.y) + row * p.y_stride);
  uint4 values[kVecs];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int v = threadIdx.x + i * blockDim.x;
    if (v < num_vectors) {
      values[i] = x[v];
      sum += SumOfSquares<T>(values[i]);
    }
  }
  const float scale = rsqrtf(BlockSum(sum, scratch) / static_cast<float>(p.width) + p.epsilon);
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int v = threadIdx.x + i * blockDim.x;
    if (v < num_vectors) ScaleRow<T>(values[i], weight[i], scale, y + v);
  }
}

// One warp a row, for narrow rows (heads). REQUIRES: width <= 32 * kVector, 16-byte aligned rows.
template <typename T>
__global__ void RmsNormWarpKernel(const __grid_constant__ RmsNormParams p) {
  LaunchNext();
  const int lane = threadIdx.x & 31;
  const bool mine = lane < p.width / kVector;
  float weight[kVector];
  if (mine) LoadNormWeight(p, lane, weight);
  WaitForPrevious();
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) >> 5;
  if (row >= p.rows) return;
  const uint4* x = reinterpret_cast<const uint4*>(static_cast<const T*>(p.x) + row * p.x_stride);
  uint4* y = reinterpret_cast<uint4*>(static_cast<T*>(p.y) + row * p.y_stride);
  uint4 value = {};
  if (mine) value = x[lane];
  const float sum = WarpSum(SumOfSquares<T>(value));
  const float scale = rsqrtf(sum / static_cast<float>(p.width) + p.epsilon);
  if (mine) ScaleRow<T>(value, weight, scale, y + lane);
}

// Any width and alignment.
template <typename T>
__global__ void RmsNormScalarKernel(const __grid_constant__ RmsNormParams p) {
  __shared__ float scratch[32];
  LaunchNext();
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
  T* y = static_cast<T*>(p.y) + row * p.y_stride;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < p.width; i += blockDim.x) {
    const float value = ToFloat(x[i]);
    sum += value * value;
  }
  const float scale = rsqrtf(BlockSum(sum, scratch) / static_cast<float>(p.width) + p.epsilon);
  for (int64_t i = threadIdx.x; i < p.width; i += blockDim.x) {
    y[i] = FromFloat<T>(ToFloat(x[i]) * scale * (p.weight[i] + p.weight_offset));
  }
}

// ---- silu_mul

__device__ __forceinline__ float Silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// REQUIRES: width % kVector == 0, 16-byte aligned.
template <typename T>
__global__ void SiluMulKernel(const __grid_constant__ SiluMulParams p) {
  LaunchNext();
  WaitForPrevious();
  const uint32_t vectors_per_row = p.width / kVector;
  const uint32_t total = p.rows * vectors_per_row;
  const uint4* gate_up = static_cast<const uint4*>(p.gate_up);
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
    const uint32_t row = i / vectors_per_row;
    const uint64_t at = uint64_t{row} * vectors_per_row + i;  // of 2 * vectors_per_row a row
    float gate[kVector], up[kVector];
    Unpack8<T>(gate_up[at], gate);
    Unpack8<T>(gate_up[at + vectors_per_row], up);
#pragma unroll
    for (int j = 0; j < kVector; ++j) gate[j] = Silu(gate[j]) * up[j];
    static_cast<uint4*>(p.y)[i] = Pack8<T>(gate);
  }
}

template <typename T>
__global__ void SiluMulScalarKernel(const __grid_constant__ SiluMulParams p) {
  LaunchNext();
  WaitForPrevious();
  const T* gate = static_cast<const T*>(p.gate_up) + blockIdx.x * 2 * p.width;
  T* y = static_cast<T*>(p.y) + blockIdx.x * p.width;
  for (int64_t i = threadIdx.x; i < p.width; i += blockDim.x) {
    y[i] = FromFloat<T>(Silu(ToFloat(gate[i])) * ToFloat(gate[p.width + i]));
  }
}

// ---- Launch configurations.

int RoundUpToWarp(int64_t threads) { return static_cast<int>((threads + 31) / 32 * 32); }

template <typename T>
absl::Status LaunchRmsNorm(const DeviceContext& context, const RmsNormParams& p) {
  const bool vectors = p.width % kVector == 0 && p.x_stride % kVector == 0 &&
                       p.y_stride % kVector == 0 && Aligned16(p.x) && Aligned16(p.y) &&
                       Aligned16(p.weight);
  const int64_t num_vectors = p.width / kVector;
  constexpr int kMaxThreads = 1024;
  if (vectors && num_vectors <= 32) {
    constexpr int kRowsPerBlock = 4;
    const auto blocks = static_cast<unsigned>((p.rows + kRowsPerBlock - 1) / kRowsPerBlock);
    return Launch(context,
                  {.kernel = "rms_norm", .grid = blocks, .block = 32 * kRowsPerBlock},
                  RmsNormWarpKernel<T>,
                  p);
  }
  const auto rows = static_cast<unsigned>(p.rows);
  if (vectors && num_vectors <= kMaxThreads) {
    const auto threads = static_cast<unsigned>(RoundUpToWarp(num_vectors));
    return Launch(context,
                  {.kernel = "rms_norm", .grid = rows, .block = threads},
                  RmsNormBlockKernel<T, 1>,
                  p);
  }
  if (vectors && num_vectors <= 2 * kMaxThreads) {
    const auto threads = static_cast<unsigned>(RoundUpToWarp((num_vectors + 1) / 2));
    return Launch(context,
                  {.kernel = "rms_norm", .grid = rows, .block = threads},
                  RmsNormBlockKernel<T, 2>,
                  p);
  }
  return Launch(
      context, {.kernel = "rms_norm", .grid = rows, .block = 512}, RmsNormScalarKernel<T>, p);
}

template <typename T>
absl::Status LaunchSiluMul(const DeviceContext& context, const SiluMulParams& p) {
  const int64_t total = p.rows * (p.width / kVector);
  if (p.width % kVector == 0 && Aligned16(p.gate_up) && Aligned16(p.y) &&
      total < (int64_t{1} << 31)) {
    constexpr int kThreads = 256;
    // Sixteen blocks fill an SM's threads twice; beyond that blocks only add launch work.
    const int64_t most = int64_t{context.num_sms} * 16;
    const auto blocks = static_cast<unsigned>(std::min((total + kThreads - 1) / kThreads, most));
    return Launch(
        context, {.kernel = "silu_mul", .grid = blocks, .block = kThreads}, SiluMulKernel<T>, p);
  }
  return Launch(context,
                {.kernel = "silu_mul", .grid = static_cast<unsigned>(p.rows), .block = 256},
                SiluMulScalarKernel<T>,
                p);
}

template <typename T>
absl::Status LaunchEmbedding(const DeviceContext& context, const EmbeddingParams& p) {
  const auto rows = static_cast<unsigned>(p.rows);
  if (p.table.k % kVector == 0 && Aligned16(p.table.data) && Aligned16(p.y)) {
    const int64_t wanted = std::min<int64_t>(p.table.k / kVector, 512);
    return Launch(context,
                  {.kernel = "embedding",
                   .grid = rows,
                   .block = static_cast<unsigned>(RoundUpToWarp(wanted))},
                  EmbeddingKernel<T>,
                  p);
  }
  return Launch(
      context, {.kernel = "embedding", .grid = rows, .block = 256}, EmbeddingScalarKernel<T>, p);
}

template <typename Unit>
absl::Status LaunchGatherRows(const DeviceContext& context, const GatherRowsParams& p) {
  const int64_t units = p.width * static_cast<int64_t>(DTypeBytes(p.dtype)) / sizeof(Unit);
  const auto threads = static_cast<unsigned>(RoundUpToWarp(std::min<int64_t>(units, 512)));
  return Launch(context,
                {.kernel = "gather_rows", .grid = static_cast<unsigned>(p.rows), .block = threads},
                GatherRowsKernel<Unit>,
                static_cast<const Unit*>(p.x),
                p.indices,
                static_cast<Unit*>(p.y),
                units);
}

}  // namespace

absl::Status ResolveTokens(const DeviceContext& context, const ResolveTokensParams& p) {
  if (p.rows == 0) return absl::OkStatus();
  constexpr int kThreads = 128;
  const auto blocks = static_cast<unsigned>((p.rows + kThreads - 1) / kThreads);
  return Launch(context,
                {.kernel = "resolve_tokens", .grid = blocks, .block = kThreads},
                ResolveTokensKernel,
                p);
}

absl::Status Scatter(const DeviceContext& context, const ScatterParams& p) {
  if (p.count == 0) return absl::OkStatus();
  constexpr int kThreads = 128;
  const auto blocks = static_cast<unsigned>((p.count + kThreads - 1) / kThreads);
  return Launch(
      context, {.kernel = "scatter", .grid = blocks, .block = kThreads}, ScatterKernel, p);
}

absl::Status Embedding(const DeviceContext& context, const EmbeddingParams& p) {
  if (p.rows == 0) return absl::OkStatus();
  if (p.table.format != WeightFormat::kRowMajor || p.table.dtype != p.y_dtype) {
    return UnsupportedError("embedding", "the table must be row-major and of the type of y");
  }
  return DispatchDType(
      p.y_dtype, "embedding", [&]<typename T>() { return LaunchEmbedding<T>(context, p); });
}

absl::Status GatherRows(const DeviceContext& context, const GatherRowsParams& p) {
  if (p.rows == 0 || p.width == 0) return absl::OkStatus();
  const int64_t row_bytes = p.width * static_cast<int64_t>(DTypeBytes(p.dtype));
  if (row_bytes % 16 == 0 && Aligned16(p.x) && Aligned16(p.y)) {
    return LaunchGatherRows<uint4>(context, p);
  }
  if (DTypeBytes(p.dtype) == 4) return LaunchGatherRows<uint32_t>(context, p);
  return LaunchGatherRows<uint16_t>(context, p);
}

absl::Status RmsNorm(const DeviceContext& context, const RmsNormParams& p) {
  if (p.rows == 0) return absl::OkStatus();
  return DispatchDType(
      p.dtype, "rms_norm", [&]<typename T>() { return LaunchRmsNorm<T>(context, p); });
}

absl::Status SiluMul(const DeviceContext& context, const SiluMulParams& p) {
  if (p.rows == 0) return absl::OkStatus();
  return DispatchDType(
      p.dtype, "silu_mul", [&]<typename T>() { return LaunchSiluMul<T>(context, p); });
}

}  // namespace pagoda::kernels::cuda
