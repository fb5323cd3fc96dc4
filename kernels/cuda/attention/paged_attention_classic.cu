#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/attention/paged_attention_classic_kernel.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"

namespace pagoda::kernels::cuda {
namespace {

// What a block may have on sm_90, less its static shared memory.
constexpr int64_t kMaxScoreBytes = 224 * 1024;

absl::Status CheckClassic(const ClassicAttentionParams& params) {
  const ClassicKvCache& cache = params.cache;
  if (params.blocksparse_local_blocks != 0 || params.blocksparse_vert_stride != 0 ||
      params.blocksparse_block_size != 64 || params.blocksparse_head_sliding_step != 0) {
    return absl::UnimplementedError(
        absl::StrCat("paged attention classic: block-sparse attention is not supported "
                     "(local_blocks ",
                     params.blocksparse_local_blocks,
                     ", vert_stride ",
                     params.blocksparse_vert_stride,
                     ", block_size ",
                     params.blocksparse_block_size,
                     ", head_sliding_step ",
                     params.blocksparse_head_sliding_step,
                     "); expected 0, 0, 64, 0"));
  }
  if (cache.num_kv_heads <= 0 || params.num_q_heads % cache.num_kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("paged attention classic: ",
                     params.num_q_heads,
                     " query heads and ",
                     cache.num_kv_heads,
                     " KV heads; the first must be a multiple of the second"));
  }
  return absl::OkStatus();
}

// Calls fn.template operator()<T, kHeadDim, kBlockSize>().
template <typename Fn>
absl::Status DispatchClassic(const ClassicKvCache& cache, Fn&& fn) {
  constexpr absl::string_view kOp = "paged attention classic";
  return DispatchAttention(cache.dtype, cache.head_dim, kOp, [&]<typename T, int kHeadDim>() {
    switch (cache.block_size) {
      case 16:
        return fn.template operator()<T, kHeadDim, 16>();
      case 32:
        return fn.template operator()<T, kHeadDim, 32>();
      default:
        return absl::Status(absl::UnimplementedError(absl::StrCat(
            kOp, ": block_size ", cache.block_size, " is not supported; supported: 16, 32")));
    }
  });
}

// Scores of `tokens`, or the outputs that half the warps hand over.
int64_t ScoreBytes(int32_t tokens, int32_t head_dim) {
  return std::max<int64_t>(tokens, classic::kWarps / 2 * head_dim) * int64_t{sizeof(float)};
}

int32_t NumPartitions(int32_t max_context_len) {
  return (max_context_len + kClassicPartitionTokens - 1) / kClassicPartitionTokens;
}

}  // namespace

absl::Status LaunchPagedAttentionClassicV1(const ClassicAttentionParams& params,
                                           cudaStream_t stream) {
  PAGODA_RETURN_IF_ERROR(CheckClassic(params));
  const int64_t shared_bytes = ScoreBytes(params.max_context_len, params.cache.head_dim);
  if (shared_bytes > kMaxScoreBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("paged attention classic version 1: scores of ",
                     params.max_context_len,
                     " tokens take ",
                     shared_bytes,
                     " bytes of shared memory, more than ",
                     kMaxScoreBytes,
                     "; version 2 has no such limit"));
  }
  return DispatchClassic(params.cache, [&]<typename T, int kHeadDim, int kBlockSize>() {
    return Launch({.kernel = "paged attention classic version 1",
                   .grid = dim3(params.num_q_heads, params.num_seqs),
                   .block = dim3(classic::kThreads),
                   .shared_bytes = static_cast<size_t>(shared_bytes)},
                  stream,
                  classic::AttentionKernel<T, kHeadDim, kBlockSize, 0>,
                  classic::KernelParams{.op = params});
  });
}

int64_t ClassicWorkspaceBytes(int32_t num_seqs,
                              int32_t num_q_heads,
                              int32_t head_dim,
                              int32_t max_context_len) {
  const int64_t parts = int64_t{num_seqs} * num_q_heads * NumPartitions(max_context_len);
  return parts * (2 * int64_t{sizeof(float)} + head_dim * int64_t{2});
}

absl::Status LaunchPagedAttentionClassicV2(const ClassicAttentionParams& params,
                                           void* workspace,
                                           cudaStream_t stream) {
  PAGODA_RETURN_IF_ERROR(CheckClassic(params));
  const int32_t max_partitions = NumPartitions(params.max_context_len);
  const int64_t parts = int64_t{params.num_seqs} * params.num_q_heads * max_partitions;
  float* part_max = static_cast<float*>(workspace);
  const classic::KernelParams kernel_params = {.op = params,
                                               .part_out = part_max + 2 * parts,
                                               .part_max = part_max,
                                               .part_sum = part_max + parts,
                                               .max_partitions = max_partitions};
  PAGODA_RETURN_IF_ERROR(
      DispatchClassic(params.cache, [&]<typename T, int kHeadDim, int kBlockSize>() {
        const int64_t shared_bytes = ScoreBytes(kClassicPartitionTokens, kHeadDim);
        return Launch({.kernel = "paged attention classic version 2",
                       .grid = dim3(params.num_q_heads, params.num_seqs, max_partitions),
                       .block = dim3(classic::kThreads),
                       .shared_bytes = static_cast<size_t>(shared_bytes)},
                      stream,
                      classic::AttentionKernel<T, kHeadDim, kBlockSize, kClassicPartitionTokens>,
                      kernel_params);
      }));
  return DispatchAttention(params.cache.dtype,
                           params.cache.head_dim,
                           "paged attention classic",
                           [&]<typename T, int kHeadDim>() {
                             return Launch({.kernel = "paged attention classic merge",
                                            .grid = dim3(params.num_q_heads, params.num_seqs),
                                            .block = dim3(classic::kThreads),
                                            .shared_bytes = max_partitions * sizeof(float)},
                                           stream,
                                           classic::MergeKernel<T, kHeadDim>,
                                           kernel_params);
                           });
}

absl::Status LaunchClassicCacheWrite(const ClassicCacheWriteParams& params, cudaStream_t stream) {
  return DispatchDType(
      params.cache.dtype, "paged attention classic cache write", [&]<typename T>() {
        return Launch({.kernel = "paged attention classic cache write",
                       .grid = dim3(params.num_tokens),
                       .block = dim3(classic::kThreads)},
                      stream,
                      classic::CacheWriteKernel<T>,
                      params);
      });
}

}  // namespace pagoda::kernels::cuda
