#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/check.h"
#include "kernels/cuda/attention/device.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr int kThreads = 128;

// One thread handles kWidth neighbouring elements: of a head's first half and their partners in its
// second half, or of what is only copied to the cache (values, and keys beyond rotary_dim).
struct RopeKernelParams {
  void* qkv;
  int64_t qkv_stride;
  const float* cos_sin;
  int32_t max_position;
  int32_t half;  // rotary_dim / 2; 0: no rotation
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  const int32_t* positions;
  const int32_t* kv_slots;
  void* cache;
  int64_t block_stride;
  int64_t v_offset;
  int64_t head_stride;
  int64_t num_slots;  // of the pool
  int32_t block_size;
  float k_factor;  // 1 / scale: what turns a key into what is stored
  float v_factor;
  // Threads that rotate, in units of kWidth elements, then those that copy.
  int32_t rotations_per_head;
  int32_t copies_per_key;
  int32_t num_rotations;
  int32_t num_key_copies;
  int32_t num_units;
};

template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth < 16 ? sizeof(T) * kWidth : 16) Vector {
  T x[kWidth];
};

template <typename T, int kWidth>
__device__ __forceinline__ Vector<T, kWidth> Scaled(Vector<T, kWidth> v, float factor) {
  if (factor == 1.0f) return v;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    v.x[i] = Number<T>::FromFloat(Number<T>::ToFloat(v.x[i]) * factor);
  }
  return v;
}

// Where the row's K of `kv_head` goes, or null: padding rows and slots outside the pool write
// nothing.
template <typename T>
__device__ __forceinline__ T* CacheRow(const RopeKernelParams& p, int row, int kv_head) {
  const int slot = p.kv_slots[row];
  if (slot < 0 || slot >= p.num_slots) return nullptr;
  const int block = slot / p.block_size;
  return static_cast<T*>(p.cache) + block * p.block_stride + kv_head * p.head_stride +
         int64_t{slot - block * p.block_size} * p.head_dim;
}

template <typename T, int kWidth>
__device__ __forceinline__ void Rotate(const RopeKernelParams& p, int row, int unit) {
  using V = Vector<T, kWidth>;
  const int head = unit / p.rotations_per_head;
  const int i = (unit - head * p.rotations_per_head) * kWidth;
  T* x = static_cast<T*>(p.qkv) + row * p.qkv_stride + head * p.head_dim + i;
  V first = *reinterpret_cast<const V*>(x);
  V second = *reinterpret_cast<const V*>(x + p.half);
  const int position = min(max(p.positions[row], 0), p.max_position);
  const float* angles = p.cos_sin + int64_t{position} * 2 * p.half + i;
  const auto cosines = *reinterpret_cast<const Vector<float, kWidth>*>(angles);
  const auto sines = *reinterpret_cast<const Vector<float, kWidth>*>(angles + p.half);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const float c = cosines.x[j];
    const float s = sines.x[j];
    const float a = Number<T>::ToFloat(first.x[j]);
    const float b = Number<T>::ToFloat(second.x[j]);
    first.x[j] = Number<T>::FromFloat(a * c - b * s);
    second.x[j] = Number<T>::FromFloat(b * c + a * s);
  }
  *reinterpret_cast<V*>(x) = first;
  *reinterpret_cast<V*>(x + p.half) = second;
  if (head < p.num_q_heads) return;
  if (T* k = CacheRow<T>(p, row, head - p.num_q_heads); k != nullptr) {
    *reinterpret_cast<V*>(k + i) = Scaled(first, p.k_factor);
    *reinterpret_cast<V*>(k + i + p.half) = Scaled(second, p.k_factor);
  }
}

// Elements [begin, head_dim) of a key or value, to the cache as they are.
template <typename T, int kWidth>
__device__ __forceinline__ void Copy(const RopeKernelParams& p, int row, int unit, bool is_value) {
  using V = Vector<T, kWidth>;
  const int per_head = is_value ? p.head_dim / kWidth : p.copies_per_key;
  const int head = unit / per_head;
  const int i = (is_value ? 0 : 2 * p.half) + (unit - head * per_head) * kWidth;
  const int first_head = p.num_q_heads + (is_value ? p.num_kv_heads : 0);
  const T* x =
      static_cast<const T*>(p.qkv) + row * p.qkv_stride + (first_head + head) * p.head_dim + i;
  if (T* k = CacheRow<T>(p, row, head); k != nullptr) {
    *reinterpret_cast<V*>(k + (is_value ? p.v_offset : 0) + i) =
        Scaled(*reinterpret_cast<const V*>(x), is_value ? p.v_factor : p.k_factor);
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    RopeKvWriteKernel(const __grid_constant__ RopeKernelParams p) {
  const int row = static_cast<int>(blockIdx.x);
  int unit = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  WaitForPreviousKernel();
  AllowNextKernel();
  if (unit >= p.num_units) return;
  if (unit < p.num_rotations) return Rotate<T, kWidth>(p, row, unit);
  unit -= p.num_rotations;
  if (unit < p.num_key_copies) return Copy<T, kWidth>(p, row, unit, /*is_value=*/false);
  Copy<T, kWidth>(p, row, unit - p.num_key_copies, /*is_value=*/true);
}

template <typename T, int kWidth>
absl::Status LaunchWidth(const RopeKvWriteParams& params, bool programmatic, cudaStream_t stream) {
  const KvCacheView& cache = params.cache;
  const int32_t half = params.cos_sin == nullptr ? 0 : params.rotary_dim / 2;
  const int32_t rotations_per_head = half / kWidth;
  const int32_t num_rotations = rotations_per_head * (params.num_q_heads + cache.num_kv_heads);
  const int32_t copies_per_key = (cache.head_dim - 2 * half) / kWidth;
  const int32_t num_key_copies = copies_per_key * cache.num_kv_heads;
  const int32_t num_units =
      num_rotations + num_key_copies + cache.head_dim / kWidth * cache.num_kv_heads;
  const RopeKernelParams kernel_params = {
      .qkv = params.qkv,
      .qkv_stride = params.qkv_stride,
      .cos_sin = params.cos_sin,
      .max_position = static_cast<int32_t>(params.max_positions - 1),
      .half = half,
      .num_q_heads = params.num_q_heads,
      .num_kv_heads = cache.num_kv_heads,
      .head_dim = cache.head_dim,
      .positions = params.batch->positions,
      .kv_slots = params.batch->kv_slots,
      .cache = cache.data,
      .block_stride = cache.block_stride,
      .v_offset = cache.v_offset,
      .head_stride = cache.head_stride,
      .num_slots = cache.num_blocks * cache.block_size,
      .block_size = cache.block_size,
      .k_factor = 1.0f / cache.k_scale,
      .v_factor = 1.0f / cache.v_scale,
      .rotations_per_head = rotations_per_head,
      .copies_per_key = copies_per_key,
      .num_rotations = num_rotations,
      .num_key_copies = num_key_copies,
      .num_units = num_units,
  };
  return Launch({.kernel = "rope and KV write",
                 .grid = dim3(params.batch->num_rows, (num_units + kThreads - 1) / kThreads),
                 .block = dim3(kThreads),
                 .programmatic = programmatic},
                stream,
                RopeKvWriteKernel<T, kWidth>,
                kernel_params);
}

}  // namespace

absl::Status LaunchRopeKvWrite(const RopeKvWriteParams& params,
                               bool programmatic,
                               cudaStream_t stream) {
  constexpr absl::string_view kOp = "rope and KV write";
  if (params.batch == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(kOp, ": batch is null"));
  }
  PAGODA_RETURN_IF_ERROR(CheckKvCache(params.cache, params.dtype, kOp));
  if (params.cos_sin != nullptr &&
      (params.rotary_dim <= 0 || params.rotary_dim % 2 != 0 ||
       params.rotary_dim > params.cache.head_dim || params.max_positions <= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp,
                     ": rotary_dim is ",
                     params.rotary_dim,
                     " of head_dim ",
                     params.cache.head_dim,
                     ", max_positions ",
                     params.max_positions,
                     "; expected an even part of a head and positions"));
  }
  const int32_t half = params.cos_sin == nullptr ? 0 : params.rotary_dim / 2;
  const bool aligned = reinterpret_cast<uintptr_t>(params.qkv) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(params.cos_sin) % 16 == 0 &&
                       params.qkv_stride % 8 == 0 && params.cache.head_dim % 8 == 0;
  return DispatchDType(params.dtype, kOp, [&]<typename T>() {
    if (aligned && half % 8 == 0) return LaunchWidth<T, 8>(params, programmatic, stream);
    return LaunchWidth<T, 1>(params, programmatic, stream);
  });
}

}  // namespace pagoda::kernels::cuda
