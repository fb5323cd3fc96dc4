#include <algorithm>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/linear/gemm_device.cuh"
#include "kernels/cuda/linear/gemv.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr int kWarps = 8;  // of a block
// Above this a block would leave no room for a second one, and occupancy is what hides latency
// here.
constexpr size_t kMaxInputBytes = 57 * 1024;

// One warp computes kRows outputs for each of kM rows of x. The first loads are issued before the
// dependency wait; from then on every load is replaced as it is used, so kRows * kDepth of them
// stay in flight.
template <typename T, int kM, int kRows, int kDepth>
__global__ void __launch_bounds__(kWarps * 32) GemvKernel(const __grid_constant__ GemmArgs a) {
  extern __shared__ uint4 shared[];
  __shared__ float scratch[kM * 32];
  LaunchNext();
  const int lane = threadIdx.x & 31;
  const int num_vectors = a.k / kVector;
  const int first_row = (blockIdx.x * kWarps + (threadIdx.x >> 5)) * kRows;
  const uint4* rows[kRows];
  uint4 w[kRows][kDepth];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    // Rows beyond the last repeat it; their sums are dropped.
    rows[r] =
        static_cast<const uint4*>(a.weight) + int64_t{min(first_row + r, a.n - 1)} * num_vectors;
#pragma unroll
    for (int u = 0; u < kDepth; ++u) {
      const int v = u * 32 + lane;
      if (v < num_vectors) w[r][u] = LoadWeights16(rows[r] + v);
    }
  }
  const EarlyNorm early = LoadNormEarly(a);
  WaitForPrevious();

  // Lane m * kRows + r finishes output (m, r).
  const int out_m = lane / kRows;
  const int out_n = first_row + lane % kRows;
  const bool finishes = lane < kM * kRows && out_n < a.n;
  const float addend = finishes ? Addend<T>(a, out_m, out_n) : 0.0f;

  StageInput<T, kM>(a, early, shared, scratch);
  float acc[kRows][kM][2] = {};
  for (int base = lane; base < num_vectors; base += 32 * kDepth) {
#pragma unroll
    for (int u = 0; u < kDepth; ++u) {
      const int v = base + u * 32;
      if (v < num_vectors) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          DotVector<T, kM>(w[r][u], shared + v, num_vectors, acc[r]);
          if (v + 32 * kDepth < num_vectors) w[r][u] = LoadWeights16(rows[r] + v + 32 * kDepth);
        }
      }
    }
  }
  float result = 0.0f;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sum = WarpSum(acc[r][m][0] + acc[r][m][1]);
      if (lane == m * kRows + r) result = sum;
    }
  }
  if (finishes) StoreOutput<T>(a, out_m, out_n, result + addend);
}

template <typename T, int kM, int kRows, int kDepth>
absl::Status LaunchVariant(const DeviceContext& context, const GemmArgs& a) {
  const int rows_per_block = kWarps * kRows;
  const auto blocks = static_cast<unsigned>((a.n + rows_per_block - 1) / rows_per_block);
  return Launch(context,
                {.kernel = "gemv",
                 .grid = blocks,
                 .block = kWarps * 32,
                 .shared_bytes = size_t{kM} * a.k * 2},
                GemvKernel<T, kM, kRows, kDepth>,
                a);
}

template <typename T, int kM>
absl::Status LaunchForRows(const DeviceContext& context,
                           const GemvConfig& config,
                           const GemmArgs& a) {
  if (config.rows == 1 && config.depth == 4) return LaunchVariant<T, kM, 1, 4>(context, a);
  if (config.rows == 1 && config.depth == 8) return LaunchVariant<T, kM, 1, 8>(context, a);
  if (config.rows == 2 && config.depth == 4) return LaunchVariant<T, kM, 2, 4>(context, a);
  return LaunchVariant<T, kM, 2, 8>(context, a);
}

}  // namespace

bool GemvFits(const DeviceContext&, const GemvConfig& config, const GemmArgs& a) {
  return a.output == OutputTransform::kNone && (config.rows == 1 || config.rows == 2) &&
         (config.depth == 4 || config.depth == 8) && a.m >= 1 && a.m <= kMaxGemvRows &&
         GemmVectorAligned(a) && size_t{2} * a.m * a.k <= kMaxInputBytes;
}

absl::Status LaunchGemv(const DeviceContext& context,
                        const GemvConfig& config,
                        DType dtype,
                        const GemmArgs& a) {
  return DispatchDType(dtype, "linear", [&]<typename T>() {
    switch (a.m) {
      case 1:
        return LaunchForRows<T, 1>(context, config, a);
      case 2:
        return LaunchForRows<T, 2>(context, config, a);
      case 3:
        return LaunchForRows<T, 3>(context, config, a);
      default:
        return LaunchForRows<T, 4>(context, config, a);
    }
  });
}

}  // namespace pagoda::kernels::cuda
