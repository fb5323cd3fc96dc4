#include "daemon/server/memory_plan.h"

#include <algorithm>
#include <array>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/model/activations.h"
#include "engine/model/kv_pool.h"
#include "engine/model/model_shard.h"
#include "kernels/base/device_fault.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/collective/ipc_memory.h"

namespace pagoda::daemon {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// A cpu's memory is shared with everything else on the machine, so an unasked-for pool stays
// modest; the cache fills it in time.
constexpr uint64_t kMaxUnaskedCpuPoolBytes = 4096 * kMiB;
constexpr uint64_t kUnaskedCpuShare = 2;  // one half of what is free
constexpr uint64_t kCpuReserveBytes = 64 * kMiB;

engine::KvSpec SpecOf(const engine::ModelConfig& model, DType dtype) {
  // One group: where some layers see everything, the blocks behind the window of the others are
  // kept, which costs memory and changes nothing else.
  engine::KvSpec spec = {.dtype = dtype,
                         .num_layers = model.num_layers,
                         .num_kv_heads = model.num_kv_heads,
                         .head_dim = model.head_dim};
  if (const int32_t window = engine::KvPool::Window(model); window > 0) {
    spec.kind = engine::KvSpec::Kind::kSlidingWindow;
    spec.window = window;
  }
  return spec;
}

// Memory that ranks have together, where each device has as much: as every rank takes the same, no
// more than the device with the most ranks gives each of its own.
uint64_t OfAllDevices(uint64_t device_bytes, const internal::v1::WorkerConfig& worker) {
  std::map<uint32_t, uint64_t> num_ranks_on;
  uint64_t most = 1;
  for (const uint32_t device : worker.devices()) most = std::max(most, ++num_ranks_on[device]);
  const auto num_ranks = static_cast<uint64_t>(std::max(worker.devices_size(), 1));
  return device_bytes / most * num_ranks;
}

// Weights, activations and what each process keeps, over the ranks.
absl::Status AddRanks(const MemoryPlanInputs& in, MemoryPlan& plan) {
  const std::string& device = in.config->worker().device();
  if (device == "sim") return absl::OkStatus();
  const uint64_t num_ranks = static_cast<uint64_t>(plan.num_ranks);
  PAGODA_ASSIGN_OR_RETURN(const engine::ModelShard shard,
                          engine::ShardModel(*in.model, 0, plan.num_ranks));
  PAGODA_ASSIGN_OR_RETURN(const uint64_t rank_weight_bytes,
                          engine::RankWeightBytes(*in.model, in.dtype, plan.num_ranks));
  plan.weight_bytes = num_ranks * rank_weight_bytes;
  plan.activation_bytes =
      num_ranks * engine::ActivationBytes(*in.config, shard.model, in.dtype, plan.num_ranks);
  if (device == "cpu") plan.reserve_bytes = num_ranks * kCpuReserveBytes;
  if (device == "cuda" && plan.num_ranks > 1) {
    plan.collective_bytes = num_ranks * kernels::cuda::IpcGroupBytes(plan.num_ranks);
  }
  return absl::OkStatus();
}

absl::Status NoMemory(const std::string& message) {
  return WithDeviceFault(absl::ResourceExhaustedError(message), DeviceFault::kNoMemory);
}

uint64_t LeftOf(uint64_t usable_bytes, const MemoryPlan& plan) {
  const uint64_t taken =
      plan.weight_bytes + plan.activation_bytes + plan.collective_bytes + plan.reserve_bytes;
  return usable_bytes > taken ? usable_bytes - taken : 0;
}

// Bytes for a pool that nobody sized.
uint64_t UnaskedPoolBytes(const MemoryPlanInputs& in,
                          const MemoryPlan& plan,
                          uint64_t block_bytes,
                          uint64_t full_length_bytes) {
  const internal::v1::WorkerConfig& worker = in.config->worker();
  // No more than every sequence at its full length can use; `sim` has no memory to run out of.
  const uint64_t useful = full_length_bytes * in.config->engine().max_num_seqs();
  if (worker.device() == "sim") return useful;
  uint64_t usable = plan.free_memory_bytes;
  if (worker.device() == "cuda") {
    const auto limit = static_cast<uint64_t>(worker.gpu_memory_utilization() *
                                             static_cast<double>(plan.total_memory_bytes));
    usable = std::min(usable, limit);
  }
  const uint64_t left = LeftOf(usable, plan);
  // Places in the pool are 32-bit numbers.
  const uint64_t most_blocks = INT32_MAX / in.config->engine().block_size();
  if (worker.device() == "cuda") return std::min(left, most_blocks * block_bytes);
  return std::min({useful, left / kUnaskedCpuShare, kMaxUnaskedCpuPoolBytes});
}

// What is sized by flags alone must fit as well. `sim` reports no memory.
absl::Status CheckFits(const MemoryPlan& plan) {
  const uint64_t needed = plan.weight_bytes + plan.activation_bytes + plan.collective_bytes +
                          plan.reserve_bytes + plan.kv.pool_bytes;
  if (plan.free_memory_bytes == 0 || needed <= plan.free_memory_bytes) return absl::OkStatus();
  return NoMemory(
      absl::StrCat("the model does not fit: weights ",
                   FormatBytes(plan.weight_bytes),
                   ", activations ",
                   FormatBytes(plan.activation_bytes),
                   ", KV cache ",
                   FormatBytes(plan.kv.pool_bytes),
                   plan.OtherText(),
                   " are more than the ",
                   FormatBytes(plan.free_memory_bytes),
                   " that are free; lower --kv-cache-memory or --max-num-batched-tokens, or choose "
                   "a smaller model"));
}

}  // namespace

int32_t NumTensorRanks(const internal::v1::ServerConfig& config) {
  return static_cast<int32_t>(std::max(config.worker().tensor_parallel_size(), 1u));
}

absl::StatusOr<DType> ResolveDType(const internal::v1::ServerConfig& config,
                                   const engine::ModelConfig& model) {
  return engine::ResolveDType(config.model().dtype(), model, config.worker().device());
}

absl::StatusOr<MemoryPlan> PlanMemory(const MemoryPlanInputs& in) {
  const internal::v1::EngineConfig& engine = in.config->engine();
  MemoryPlan plan;
  plan.block_size = static_cast<int32_t>(engine.block_size());
  plan.max_model_len = in.max_model_len;
  plan.num_ranks = NumTensorRanks(*in.config);
  plan.total_memory_bytes = OfAllDevices(in.hello->total_memory_bytes(), in.config->worker());
  plan.free_memory_bytes = OfAllDevices(in.hello->free_memory_bytes(), in.config->worker());
  const std::string& device = in.config->worker().device();
  PAGODA_RETURN_IF_ERROR(AddRanks(in, plan));

  engine::KvSpec spec = SpecOf(*in.model, in.dtype);
  // Where ranks outnumber them, KV heads repeat.
  spec.num_kv_heads = std::max(spec.num_kv_heads, plan.num_ranks);
  const uint64_t block_bytes = engine::KvBlockBytes(spec, plan.block_size);
  // Also behind a window: the prefix cache can use them.
  engine::KvSpec all = spec;
  all.window.reset();
  const uint64_t full_length_bytes =
      block_bytes * engine::KvBlocksPerSequence(all, plan.block_size, in.max_model_len);
  const bool is_asked = engine.kv_cache_memory_bytes() != 0;
  uint64_t pool_bytes = is_asked ? engine.kv_cache_memory_bytes()
                                 : UnaskedPoolBytes(in, plan, block_bytes, full_length_bytes);
  if (is_asked && device == "cuda") {
    // A smaller pool serves as well, a little slower; other processes may come and go on a GPU.
    pool_bytes = std::min(pool_bytes, LeftOf(plan.free_memory_bytes, plan));
    if (pool_bytes < engine.kv_cache_memory_bytes()) {
      plan.asked_pool_bytes = engine.kv_cache_memory_bytes();
    }
  }
  plan.kv = engine::PlanKvPool(spec, plan.block_size, in.max_model_len, pool_bytes);
  if (plan.kv.num_blocks == 0) {
    PAGODA_RETURN_IF_ERROR(CheckFits(plan));
    return NoMemory(absl::StrCat("no KV block fits: one takes ",
                                 FormatBytes(block_bytes),
                                 " and ",
                                 FormatBytes(pool_bytes),
                                 is_asked ? " were given" : " are left",
                                 device == "cuda" && !is_asked
                                     ? "; raise --gpu-memory-utilization, or lower --block-size or "
                                       "--max-num-batched-tokens"
                                     : "; raise --kv-cache-memory or lower --block-size"));
  }
  PAGODA_RETURN_IF_ERROR(CheckFits(plan));
  return plan;
}

std::vector<std::string> MemoryPlan::ToLines() const {
  std::vector<std::string> lines = {
      absl::StrFormat("memory plan: weights %s, activations %s, KV cache %s%s; %s of %s free",
                      FormatBytes(weight_bytes),
                      FormatBytes(activation_bytes),
                      FormatBytes(kv.pool_bytes),
                      OtherText(),
                      FormatBytes(free_memory_bytes),
                      FormatBytes(total_memory_bytes)),
      absl::StrFormat("KV cache: %d blocks of %d tokens (%s each), %d tokens; %.1f sequences "
                      "of %d tokens at once",
                      kv.num_blocks,
                      block_size,
                      FormatBytes(kv.block_bytes),
                      kv.num_blocks * static_cast<uint64_t>(block_size),
                      kv.full_length_concurrency,
                      max_model_len)};
  if (num_ranks > 1) {
    const uint64_t ranks = static_cast<uint64_t>(num_ranks);
    lines.push_back(absl::StrFormat("each of %d ranks: weights %s, activations %s, KV cache %s",
                                    num_ranks,
                                    FormatBytes(weight_bytes / ranks),
                                    FormatBytes(activation_bytes / ranks),
                                    FormatBytes(kv.pool_bytes / ranks)));
  }
  if (asked_pool_bytes != 0) {
    lines.push_back(absl::StrFormat(
        "KV cache: --kv-cache-memory asks for %s, of which %s fit in the memory that is free",
        FormatBytes(asked_pool_bytes),
        FormatBytes(kv.pool_bytes)));
  }
  return lines;
}

std::string MemoryPlan::OtherText() const {
  std::string text;
  if (collective_bytes != 0)
    absl::StrAppend(&text, ", collectives ", FormatBytes(collective_bytes));
  if (reserve_bytes != 0) absl::StrAppend(&text, ", reserve ", FormatBytes(reserve_bytes));
  return text;
}

std::string MeasuredMemoryLine(const MemoryPlan& plan, const internal::v1::ModelReady& ready) {
  const uint64_t known = ready.weight_bytes() + ready.activation_bytes();
  std::string line = absl::StrFormat(
      "memory measured: weights %s, activations %s, other buffers and kernels %s, kept free for "
      "graphs %s; KV cache %s: %d blocks",
      FormatBytes(ready.weight_bytes()),
      FormatBytes(ready.activation_bytes()),
      FormatBytes(ready.taken_bytes() - std::min(ready.taken_bytes(), known)),
      FormatBytes(ready.kept_free_bytes()),
      FormatBytes(ready.kv_bytes()),
      ready.num_kv_blocks());
  if (ready.num_kv_blocks() < plan.kv.num_blocks) {
    absl::StrAppend(&line, " of ", plan.kv.num_blocks, " planned, as that is what fits");
  }
  return line;
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024.0 && unit + 1 < kUnits.size(); ++unit) value /= 1024.0;
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

}  // namespace pagoda::daemon
