#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/sample/cluster_row.cuh"
#include "kernels/cuda/sample/sampler.h"

// Rows that want more than an argmax of their logits.

namespace pagoda::kernels::cuda {
namespace {

// Temperature and filters, then the noise. The key is block 0's alone if `only_leader`.
__device__ unsigned long long Draw(ClusterRow& z,
                                   const SampleRow& row,
                                   float largest,
                                   bool* only_leader) {
  *only_leader = false;
  z.SetScale(largest, row.temperature);
  Cutoff in_play = AllFinite();
  if (row.min_p > 0.0f) {
    const float floor = largest + row.temperature * logf(row.min_p);
    in_play.value = fmaxf(floor, -FLT_MAX);
    z.SetInPlay(in_play);
  }
  const bool has_top_p = row.top_p < 1.0f;
  const bool has_typical = row.typical_p < 1.0f;
  uint32_t count = row.min_p > 0.0f ? z.CountInPlay() : z.num_finite();
  const bool has_top_k = row.top_k > 0 && static_cast<uint32_t>(row.top_k) < count;
  double mass = 0.0;
  if (has_top_p && !has_top_k) mass = z.MassInPlay().total;

  // What the first filter keeps lies above a bound; if few tokens do, one block finishes alone.
  ClusterRow::Bracket bracket = {in_play.value, INFINITY, count, 0, 0.0};
  if (has_top_k) {
    bracket = z.Narrow<Order::kLogit, false>(count, row.top_k);
  } else if (has_top_p) {
    bracket = z.Narrow<Order::kLogit, true>(count, row.top_p * mass);
  }
  if (!has_typical && bracket.count_low <= kListCapacity) {
    *only_leader = true;
    const int size = z.GatherSorted<Order::kLogit>(bracket.low, INFINITY);
    if (!z.IsLeader()) return kNoKey;
    return DrawFromList(
        z.list(), size, row, z.scale(), has_top_k ? kMassOfList : mass, z.key_scratch());
  }

  if (has_top_k) {
    z.SetInPlay(z.CutBracket<Order::kLogit, false>(bracket, row.top_k));
    count = row.top_k;
    if (has_top_p) {
      mass = z.MassInPlay().total;
      z.KeepMass(count, row.top_p * mass);
    }
  } else if (has_top_p) {
    z.SetInPlay(z.CutBracket<Order::kLogit, true>(bracket, row.top_p * mass));
  }
  if (has_typical) {
    const ClusterRow::Mass total = z.MassInPlay();
    z.KeepTypicalMass(z.CountInPlay(),
                      static_cast<float>(total.weighted / total.total),
                      row.typical_p * total.total);
  }
  return z.DrawNoisy(row);
}

// Log-probability and rank of the token, and the top entries.
__device__ void Score(ClusterRow& z,
                      const SampleParams& p,
                      int64_t row_idx,
                      int32_t token,
                      float largest,
                      float temperature) {
  const SampleRow& row = p.row_params[row_idx];
  z.SetScale(largest, temperature);
  const double log_sum = log(z.MassInPlay().total);
  const auto logprob = [&](float value) {
    return static_cast<float>(static_cast<double>(value - largest) / temperature - log_sum);
  };
  const float value = z.ValueOf(token);
  const uint32_t rank = z.CountBefore(value, token) + 1;
  if (z.IsLeader() && threadIdx.x == 0) {
    p.logprobs[row_idx] = logprob(value);
    p.ranks[row_idx] = static_cast<int32_t>(rank);
  }
  if (p.max_top == 0) return;
  const int num_top = min(row.num_logprobs, p.vocab_size);
  if (num_top > 0) {
    z.SetInPlay(AllTokens());
    if (num_top < p.vocab_size) z.KeepCount(p.vocab_size, num_top);
    z.GatherSorted<Order::kLogit>(-INFINITY, INFINITY);
  }
  if (!z.IsLeader()) return;
  for (int t = threadIdx.x; t < p.max_top; t += kSelectThreads) {
    // Beyond the last finite logit there are no entries.
    const float top = t < num_top ? KeyValue(z.list()[t]) : -INFINITY;
    const bool is_set = top > -INFINITY;
    p.top_ids[row_idx * p.max_top + t] = is_set ? KeyId(z.list()[t]) : kNoTopEntry;
    p.top_logprobs[row_idx * p.max_top + t] = is_set ? logprob(top) : -INFINITY;
  }
}

__device__ bool IsFiniteKey(unsigned long long key) {
  return key != kNanKey && key != kNoKey && isfinite(KeyValue(key));
}

__device__ void SampleInCluster(ClusterRow& z, const SampleParams& p, int64_t row_idx) {
  const SampleRow& row = p.row_params[row_idx];
  const float* logits = p.logits + row_idx * p.logits_stride;
  const bool is_changed = row.allowed_begin < row.allowed_end ||
                          row.masked_begin < row.masked_end || row.bias_begin < row.bias_end ||
                          row.penalty_begin < row.penalty_end;
  z.Load(logits);
  const unsigned long long raw = z.Largest();
  const bool is_finite = IsFiniteKey(raw);
  unsigned long long best = raw;
  if (is_finite && is_changed) {
    z.Process(p, row);
    best = z.Largest();
  }
  const bool best_finite = is_finite && IsFiniteKey(best);
  bool only_leader = false;
  unsigned long long drawn = kNoKey;
  int32_t token = kNonFinite;
  const bool scores_processed = row.num_logprobs >= 0 && row.processed_logprobs != 0;
  if (is_finite && row.target_token >= 0) {
    // Masks that leave nothing leave nothing to score by.
    if (best_finite || !scores_processed) token = min(row.target_token, p.vocab_size - 1);
  } else if (best_finite) {
    drawn = row.temperature == 0.0f ? best : Draw(z, row, KeyValue(best), &only_leader);
    token = drawn == kNoKey ? kNonFinite : KeyId(drawn);
  }
  if (z.IsLeader() && threadIdx.x == 0) {
    p.tokens[row_idx] = token;
    if (row.slot >= 0 && row.slot < p.num_slots && row.target_token < 0) {
      p.last_tokens[row.slot] = token;
    }
  }
  if (row.num_logprobs < 0) return;
  if (only_leader) {
    drawn = z.FromLeader(drawn);
    token = drawn == kNoKey ? kNonFinite : KeyId(drawn);
  }
  if (token < 0) return;
  if (scores_processed) {
    Score(z, p, row_idx, token, KeyValue(best), row.temperature > 0.0f ? row.temperature : 1.0f);
  } else {
    if (is_changed) {
      z.Sync();  // nobody still reads the changed row
      z.Load(logits);
      z.Sync();
    }
    Score(z, p, row_idx, token, KeyValue(raw), 1.0f);
  }
  z.Sync();  // nobody still reads this block's tokens, or block 0 its list
}

__global__ void __cluster_dims__(kClusterBlocks, 1, 1) __launch_bounds__(kSelectThreads, 3)
    SelectKernel(const __grid_constant__ SampleParams p, int32_t chunk, SelectQueue* queue) {
  extern __shared__ __align__(128) char shared[];
  LaunchNext();
  ClusterRow z(p.vocab_size, chunk, shared);
  z.Sync();  // all have begun, block 0's list is empty
  WaitForPrevious();
  for (int64_t row; (row = z.NextRow(p, queue)) < p.rows;) SampleInCluster(z, p, row);
  z.LeaveQueue(gridDim.x / kClusterBlocks, queue);
  z.Sync();  // the memory of a block that has ended must not be read
}

}  // namespace

namespace {

int32_t ChunkOf(int32_t vocab_size) {
  constexpr int64_t kAlign = kClusterBlocks * 32;
  return static_cast<int32_t>((vocab_size + kAlign - 1) / kAlign * 32);
}

}  // namespace

absl::StatusOr<int> CountSelectClusters(const DeviceContext& context, int32_t vocab_size) {
  const size_t shared_bytes = ClusterRow::SharedBytes(ChunkOf(vocab_size));
  constexpr size_t kStaticBytes = 128;
  if (shared_bytes + kStaticBytes > static_cast<size_t>(context.max_block_shared_bytes)) {
    return UnsupportedError(
        "sample",
        absl::StrCat("filters and log-probabilities over a vocabulary of ",
                     vocab_size,
                     " tokens; at most about 420,000 fit in the shared memory of a cluster"));
  }
  PAGODA_RETURN_IF_ERROR(
      CudaStatus(cudaFuncSetAttribute(SelectKernel,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shared_bytes)),
                 "cudaFuncSetAttribute",
                 "sample_select"));
  cudaLaunchConfig_t config = {};
  config.gridDim = kClusterBlocks;
  config.blockDim = kSelectThreads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = context.stream;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kClusterBlocks;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  PAGODA_RETURN_IF_ERROR(
      CudaStatus(cudaOccupancyMaxActiveClusters(&clusters, SelectKernel, &config),
                 "cudaOccupancyMaxActiveClusters",
                 "sample_select"));
  if (clusters == 0) {
    return UnsupportedError("sample", "no cluster of eight blocks fits on the device");
  }
  return clusters;
}

absl::Status LaunchSampleSelect(const DeviceContext& context,
                                const SampleParams& params,
                                int num_clusters,
                                SelectQueue* queue) {
  if (params.max_top > kListCapacity) {
    return UnsupportedError("sample",
                            absl::StrCat(params.max_top, " top entries; at most ", kListCapacity));
  }
  const int32_t chunk = ChunkOf(params.vocab_size);
  const auto clusters = static_cast<unsigned>(std::min<int64_t>(params.rows, num_clusters));
  return Launch(context,
                {.kernel = "sample_select",
                 .grid = clusters * kClusterBlocks,
                 .block = kSelectThreads,
                 .shared_bytes = ClusterRow::SharedBytes(chunk)},
                SelectKernel,
                params,
                chunk,
                queue);
}

}  // namespace pagoda::kernels::cuda
