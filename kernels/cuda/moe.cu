#include <algorithm>
#include <cfloat>
#include <cstdint>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/grouped_gemm.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/primitives.cuh"

namespace pagoda::kernels::cuda {
namespace {

constexpr int kMaxExperts = 1024;

// ---- route_experts, in two kernels: rows choose, then experts collect.

// Best first; the lower id on ties, and a NaN after every number.
__device__ __forceinline__ bool IsBefore(float a, int a_id, float b, int b_id) {
  return a > b || (a == b && a_id < b_id);
}

// One warp a row. A lane holds experts lane, lane + 32, ..., kPerLane of them; each round takes the
// best that is left.
template <int kPerLane>
__global__ void ChooseExpertsKernel(const __grid_constant__ RouteExpertsParams p) {
  LaunchNext();
  WaitForPrevious();
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) >> 5;
  if (row >= p.rows) return;
  const int lane = threadIdx.x & 31;
  float logits[kPerLane];
  float max = -FLT_MAX;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane + 32 * i;
    logits[i] = expert < p.num_experts ? p.logits[row * p.num_experts + expert] : -INFINITY;
    max = fmaxf(max, logits[i]);
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    max = fmaxf(max, __shfl_xor_sync(kFullWarp, max, offset));
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) sum += expf(logits[i] - max);
  sum = WarpSum(sum);

  uint32_t taken = 0;  // bit i: logits[i] was chosen
  float chosen_sum = 0.0f;
  for (int j = 0; j < p.top_k; ++j) {
    float best = -INFINITY;
    int best_id = INT32_MAX;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int expert = lane + 32 * i;
      const bool open = expert < p.num_experts && (taken >> i & 1) == 0;
      if (open && (best_id == INT32_MAX || IsBefore(logits[i], expert, best, best_id))) {
        best = logits[i];
        best_id = expert;
      }
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
      const float other = __shfl_xor_sync(kFullWarp, best, offset);
      const int other_id = __shfl_xor_sync(kFullWarp, best_id, offset);
      const bool take = other_id != INT32_MAX &&
                        (best_id == INT32_MAX || IsBefore(other, other_id, best, best_id) ||
                         (!IsBefore(best, best_id, other, other_id) && other_id < best_id));
      if (take) {
        best = other;
        best_id = other_id;
      }
    }
    if (best_id % 32 == lane) taken |= 1u << (best_id / 32);
    const float weight = expf(best - max) / sum;
    chosen_sum += weight;
    if (lane == 0) {
      p.routing.row_experts[row * p.top_k + j] = best_id;
      p.routing.row_weights[row * p.top_k + j] = weight;
    }
  }
  if (!p.normalise || lane != 0) return;
  for (int j = 0; j < p.top_k; ++j) p.routing.row_weights[row * p.top_k + j] /= chosen_sum;
}

// One block an expert: counts the choices of lower experts and its own, then gives its own their
// places in order. A warp has a stretch of the choices and takes 32 of them at a time.
constexpr int kCollectThreads = 256;
__global__ void CollectExpertKernel(const __grid_constant__ RouteExpertsParams p) {
  constexpr int kWarps = kCollectThreads / 32;
  __shared__ int warp_own[kWarps], warp_lower[kWarps];
  LaunchNext();
  WaitForPrevious();
  const int expert = blockIdx.x;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int total = static_cast<int>(p.rows) * p.top_k;
  const int stretch = (total + 32 * kWarps - 1) / (32 * kWarps) * 32;
  const int begin = min(warp * stretch, total), end = min(begin + stretch, total);
  const int32_t* experts = p.routing.row_experts;
  int own = 0, lower = 0;
  for (int i = begin + lane; i - lane < end; i += 32) {
    const int id = i < end ? experts[i] : INT32_MAX;
    own += __popc(__ballot_sync(kFullWarp, id == expert));
    lower += __popc(__ballot_sync(kFullWarp, id < expert));
  }
  if (lane == 0) {
    warp_own[warp] = own;
    warp_lower[warp] = lower;
  }
  __syncthreads();
  int first = 0;
  for (int w = 0; w < kWarps; ++w) first += warp_lower[w];
  if (threadIdx.x == 0) {
    p.routing.group_offsets[expert] = first;
    if (expert == p.num_experts - 1) p.routing.group_offsets[p.num_experts] = total;
  }
  int next = first;
  for (int w = 0; w < warp; ++w) next += warp_own[w];
  for (int i = begin + lane; i - lane < end; i += 32) {
    const bool mine = i < end && experts[i] == expert;
    const uint32_t mask = __ballot_sync(kFullWarp, mine);
    if (mine) {
      const int entry = next + __popc(mask & ((1u << lane) - 1));
      p.routing.entry_rows[entry] = i / p.top_k;
      p.routing.row_entries[i] = entry;
    }
    next += __popc(mask);
  }
}

template <int kPerLane>
absl::Status LaunchChoose(const DeviceContext& context, const RouteExpertsParams& p) {
  if constexpr (kPerLane * 32 < kMaxExperts) {
    if (p.num_experts > kPerLane * 32) return LaunchChoose<2 * kPerLane>(context, p);
  }
  constexpr int kRowsPerBlock = 4;
  const auto blocks = static_cast<unsigned>((p.rows + kRowsPerBlock - 1) / kRowsPerBlock);
  return Launch(context,
                {.kernel = "choose_experts", .grid = blocks, .block = 32 * kRowsPerBlock},
                ChooseExpertsKernel<kPerLane>,
                p);
}

// ---- grouped_linear where grouped_gemm.cuh cannot: one warp an output, any shape.

template <typename T>
__global__ void GroupedLinearScalarKernel(const __grid_constant__ GroupedLinearParams p) {
  LaunchNext();
  WaitForPrevious();
  const int64_t n = p.weight.n / p.num_groups, k = p.weight.k;
  const int64_t entry = blockIdx.y;
  const int64_t column = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) >> 5;
  if (column >= n) return;
  int group = 0;
  while (group + 1 < p.num_groups && p.group_offsets[group + 1] <= entry) ++group;
  const int64_t row = p.entry_rows == nullptr ? entry : p.entry_rows[entry];
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
  const T* weight = static_cast<const T*>(p.weight.data) + (group * n + column) * k;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x & 31; i < k; i += 32) sum += ToFloat(x[i]) * ToFloat(weight[i]);
  sum = WarpSum(sum);
  if ((threadIdx.x & 31) == 0) static_cast<T*>(p.y)[entry * n + column] = FromFloat<T>(sum);
}

template <typename T>
absl::Status LaunchScalar(const DeviceContext& context, const GroupedLinearParams& p) {
  constexpr int kThreads = 256;
  constexpr int64_t kMaxEntries = 65535;
  if (p.num_entries > kMaxEntries) {
    return UnsupportedError("grouped_linear",
                            "more than 65535 entries where k is no multiple of 8 or n is odd");
  }
  const auto blocks = static_cast<unsigned>((p.n() * 32 + kThreads - 1) / kThreads);
  return Launch(context,
                {.kernel = "grouped_linear",
                 .grid = dim3(blocks, static_cast<unsigned>(p.num_entries)),
                 .block = kThreads},
                GroupedLinearScalarKernel<T>,
                p);
}

// ---- combine_experts. One block a row.

template <typename T, int kCount>
__global__ void CombineExpertsKernel(const __grid_constant__ CombineExpertsParams p) {
  LaunchNext();
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  T* y = static_cast<T*>(p.y) + row * p.width;
  for (int64_t i = threadIdx.x * kCount; i < p.width; i += blockDim.x * kCount) {
    float sum[kCount] = {};
    if constexpr (kCount == kVector) {
      if (p.adds) Unpack8<T>(*reinterpret_cast<const uint4*>(y + i), sum);
    } else {
      if (p.adds) sum[0] = ToFloat(y[i]);
    }
    for (int j = 0; j < p.top_k; ++j) {
      const float weight = p.row_weights[row * p.top_k + j];
      const int64_t entry = p.row_entries[row * p.top_k + j];
      const T* x = static_cast<const T*>(p.x) + entry * p.width + i;
      if constexpr (kCount == kVector) {
        float value[kVector];
        Unpack8<T>(*reinterpret_cast<const uint4*>(x), value);
#pragma unroll
        for (int e = 0; e < kVector; ++e) sum[e] += weight * value[e];
      } else {
        sum[0] += weight * ToFloat(*x);
      }
    }
    if constexpr (kCount == kVector) {
      *reinterpret_cast<uint4*>(y + i) = Pack8<T>(sum);
    } else {
      y[i] = FromFloat<T>(sum[0]);
    }
  }
}

}  // namespace

absl::Status RouteExperts(const DeviceContext& context, const RouteExpertsParams& p) {
  if (p.num_experts > kMaxExperts) {
    return UnsupportedError("route_experts", "more than 1024 experts");
  }
  if (p.rows > 0) PAGODA_RETURN_IF_ERROR(LaunchChoose<1>(context, p));
  return Launch(context,
                {.kernel = "collect_expert",
                 .grid = static_cast<unsigned>(p.num_experts),
                 .block = kCollectThreads},
                CollectExpertKernel,
                p);
}

absl::Status GroupedLinear(const DeviceContext& context, const GroupedLinearParams& p) {
  if (p.num_entries == 0) return absl::OkStatus();
  if (p.weight.format != WeightFormat::kRowMajor || p.weight.dtype != p.dtype) {
    return UnsupportedError("grouped_linear", "the weight must be row-major and of the type of x");
  }
  const bool tiles = p.weight.k % kVector == 0 && p.n() % 2 == 0 && p.x_stride % kVector == 0 &&
                     Aligned16(p.x) && Aligned16(p.weight.data);
  return DispatchDType(p.dtype, "grouped_linear", [&]<typename T>() {
    return tiles ? LaunchGroupedGemm<T>(context, p) : LaunchScalar<T>(context, p);
  });
}

absl::Status CombineExperts(const DeviceContext& context, const CombineExpertsParams& p) {
  if (p.rows == 0) return absl::OkStatus();
  const bool vectors = p.width % kVector == 0 && Aligned16(p.x) && Aligned16(p.y);
  const int64_t units = vectors ? p.width / kVector : p.width;
  const LaunchConfig config = {
      .kernel = "combine_experts",
      .grid = static_cast<unsigned>(p.rows),
      .block = static_cast<unsigned>(std::min<int64_t>((units + 31) / 32 * 32, 512))};
  return DispatchDType(p.dtype, "combine_experts", [&]<typename T>() {
    return vectors ? Launch(context, config, CombineExpertsKernel<T, kVector>, p)
                   : Launch(context, config, CombineExpertsKernel<T, 1>, p);
  });
}

}  // namespace pagoda::kernels::cuda
