// What a ModelRunner does before its first step.
#include <algorithm>
#include <unistd.h>
#include <utility>

#include "engine/model/checkpoint.h"
#include "engine/model/model_runner.h"
#include "engine/model/step_limits.h"
#include "engine/model/warm_up_plans.h"
#include "engine/model/weight_loader.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "pagoda_version.h"

namespace pagoda::engine {
namespace {

// Progress is told at most so often: a message for every tensor would be noise.
constexpr int64_t kProgressPeriodNs = 100'000'000;
// After which a KV pool that others leave no room for is a failure.
constexpr int kPoolTries = 4;

// Of measurements, where ranks share a device.
constexpr uint64_t kSharingSlackBytes = uint64_t{128} << 20;

// Steps with prompts are recorded up to so many tokens. Beyond, products are bound by arithmetic,
// so that padding costs time, and launching has long ended before the device has.
constexpr int32_t kMaxRecordedTokens = 256;

double SecondsSince(const Clock& clock, int64_t start_ns) {
  return static_cast<double>(clock.NowNs() - start_ns) * 1e-9;
}

}  // namespace

absl::StatusOr<internal::v1::WorkerHello> ModelRunner::Open(const internal::v1::OpenWorker& open) {
  open_ = open;
  const internal::v1::WorkerConfig& worker = open.config().worker();
  PAGODA_RETURN_IF_ERROR(group_.CheckPlace(open));
  PAGODA_ASSIGN_OR_RETURN(backend_,
                          open_backend_(worker.device(),
                                        {.device_index = DeviceIndexOf(worker, open.tensor_rank()),
                                         .cpu_threads = static_cast<int>(worker.cpu_threads()),
                                         .cpu_isa = worker.cpu_isa(),
                                         .backend_dir = worker.backend_dir(),
                                         .step_clock_path = worker.step_clock_path()}));
  // Ranks that share a device look at it when all have opened it, and before any takes more.
  PAGODA_RETURN_IF_ERROR(group_.Meet());
  PAGODA_ASSIGN_OR_RETURN(const kernels::DeviceInfo info, backend_->Info());
  PAGODA_RETURN_IF_ERROR(group_.Meet());
  PAGODA_RETURN_IF_ERROR(group_.Open(*backend_, open.config()));
  measured_.num_sharing = group_.ranks_on_device();
  if (measured_.num_sharing > 1 && open.start() <= 1) measured_.slack_bytes = kSharingSlackBytes;
  measured_.total_bytes = info.total_memory_bytes;
  measured_.free_at_first_bytes = info.free_memory_bytes;
  internal::v1::WorkerHello hello;
  hello.set_version(PAGODA_VERSION);
  hello.set_pid(getpid());
  hello.set_device(worker.device());
  hello.set_device_name(info.name);
  hello.set_total_memory_bytes(info.total_memory_bytes);
  hello.set_free_memory_bytes(info.free_memory_bytes);
  hello.set_pci_bus_id(info.pci_bus_id);
  hello.set_cuda_version(info.cuda_version);
  hello.set_nccl_version(info.nccl_version);
  return hello;
}

absl::Status ModelRunner::LoadModelWeights(const ModelConfig& whole_model,
                                           const ProgressFn& progress) {
  const internal::v1::ModelConfig& config = open_.config().model();
  PAGODA_ASSIGN_OR_RETURN(const DType dtype,
                          ResolveDType(config.dtype(), model_, backend_->name()));
  PAGODA_ASSIGN_OR_RETURN(activation_dtype_, backend_->ActivationDType(dtype));
  PAGODA_ASSIGN_OR_RETURN(std::vector<WeightPlan> plans, PlanWeights(whole_model, shard_));
  if (config.load_format() == internal::v1::LOAD_FORMAT_DUMMY) {
    PAGODA_ASSIGN_OR_RETURN(weights_, Weights::Allocate(*backend_, std::move(plans), dtype));
    PAGODA_ASSIGN_OR_RETURN(const ModelShard whole, ShardModel(whole_model, 0, 1));
    PAGODA_ASSIGN_OR_RETURN(const std::vector<WeightPlan> all, PlanWeights(whole_model, whole));
    return FillDummyWeights(*backend_, config.dummy_seed(), all, weights_);
  }
  // Everything that can be wrong with the files is found before memory is taken.
  PAGODA_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                          OpenModelCheckpoint(config.path(), whole_model));
  PAGODA_ASSIGN_OR_RETURN(weights_, Weights::Allocate(*backend_, std::move(plans), dtype));
  int64_t last_told_ns = 0;
  const auto tell = [&](uint64_t bytes_done, uint64_t bytes_total) {
    const int64_t now_ns = clock_->NowNs();
    if (!progress || (bytes_done < bytes_total && now_ns - last_told_ns < kProgressPeriodNs)) {
      return;
    }
    last_told_ns = now_ns;
    internal::v1::LoadProgress message;
    message.set_phase("weights");
    message.set_bytes_done(bytes_done);
    message.set_bytes_total(bytes_total);
    progress(message);
  };
  return LoadWeights(*backend_, *checkpoint, weights_, tell);
}

absl::StatusOr<internal::v1::ModelReady> ModelRunner::Load(const internal::v1::LoadModel& load,
                                                           const ProgressFn& progress) {
  PAGODA_CHECK(backend_ != nullptr);
  const int64_t start_ns = clock_->NowNs();
  PAGODA_ASSIGN_OR_RETURN(const ModelConfig whole_model,
                          LoadModelConfig(open_.config().model().path()));
  PAGODA_ASSIGN_OR_RETURN(shard_,
                          ShardModel(whole_model,
                                     static_cast<int32_t>(open_.tensor_rank()),
                                     std::max(static_cast<int32_t>(open_.tensor_ranks()), 1)));
  model_ = shard_.model;
  architecture_ = FindArchitecture(model_.architecture);
  PAGODA_ASSIGN_OR_RETURN(const StepLimits limits,
                          MakeStepLimits(open_.config(), model_, load.num_kv_blocks()));
  PAGODA_RETURN_IF_ERROR(LoadModelWeights(whole_model, progress));
  // What waits for a rank on a device waits for a limited time, and files may be slow.
  PAGODA_RETURN_IF_ERROR(group_.Meet());
  const int64_t loaded_ns = clock_->NowNs();

  PAGODA_RETURN_IF_ERROR(AllocateStepMemory(limits));
  slots_.emplace(limits);
  constraints_.emplace(limits.num_slots, limits.vocab_size);
  // What a device takes for its steps shows only when they have run, on a pool of one block; the
  // pool gets what is left.
  const bool measures = backend_->supports_graphs();
  if (measures) {
    PAGODA_RETURN_IF_ERROR(AllocateKvPool(1));
    PAGODA_RETURN_IF_ERROR(WarmUp());
    PAGODA_ASSIGN_OR_RETURN(measured_.graph_bytes, MeasureLargestSteps());
    MakeStepGraphs(limits);
    PAGODA_RETURN_IF_ERROR(AllocateFittingKvPool(limits.num_blocks));
  } else {
    PAGODA_RETURN_IF_ERROR(AllocateKvPool(limits.num_blocks));
    PAGODA_RETURN_IF_ERROR(WarmUp());
  }
  PAGODA_RETURN_IF_ERROR(backend_->Synchronize());

  internal::v1::ModelReady ready;
  ready.set_weight_bytes(weights_.size_bytes());
  ready.set_activation_bytes(activations_.plan().total_bytes);
  ready.set_kv_bytes(kv_.size_bytes());
  ready.set_num_kv_blocks(static_cast<uint32_t>(slots_->limits().num_blocks));
  if (measures) {
    ready.set_taken_bytes(measured_.free_at_first_bytes -
                          std::min(measured_.free_at_first_bytes, measured_.free_bytes));
    ready.set_kept_free_bytes(KeptFreeBytes(measured_));
  }
  ready.set_read_seconds(static_cast<double>(loaded_ns - start_ns) * 1e-9);
  ready.set_warmup_seconds(SecondsSince(*clock_, loaded_ns));
  return ready;
}

void ModelRunner::MakeStepGraphs(const StepLimits& limits) {
  graphs_ = StepGraphs(
      std::min({limits.num_slots, limits.max_step_tokens, activations_.plan().max_logit_rows}));
  layer_graphs_ = StepGraphs(std::min(limits.max_step_tokens, kMaxRecordedTokens));
}

absl::Status ModelRunner::AllocateStepMemory(const StepLimits& limits) {
  PAGODA_ASSIGN_OR_RETURN(
      positions_,
      PositionTables::Make(*backend_,
                           model_,
                           limits.max_model_len,
                           {.first = shard_.first_head, .num_all = shard_.num_all_heads}));
  const ActivationPlan plan = PlanActivations(model_, limits, activation_dtype_, shard_.num_ranks);
  PAGODA_ASSIGN_OR_RETURN(activations_, Activations::Allocate(*backend_, plan));
  ranks_ = {.group = group_.devices(), .first_id = shard_.first_id, .num_ids = shard_.num_ids};
  num_sets_ = std::max(2, static_cast<int>(open_.config().engine().max_steps_in_flight()));
  PAGODA_ASSIGN_OR_RETURN(inputs_, BatchInputs::Allocate(*backend_, limits, num_sets_));
  PAGODA_ASSIGN_OR_RETURN(
      sampling_, SamplingInputs::Allocate(*backend_, limits, plan.max_logit_rows, num_sets_));
  PAGODA_ASSIGN_OR_RETURN(
      outputs_,
      SampleOutputs::Allocate(*backend_, plan.max_logit_rows, limits.vocab_size, num_sets_));
  return absl::OkStatus();
}

absl::Status ModelRunner::AllocateKvPool(int32_t num_blocks) {
  PAGODA_ASSIGN_OR_RETURN(
      kv_,
      KvPool::Allocate(
          *backend_, model_, weights_.dtype(), num_blocks, slots_->limits().block_size));
  return absl::OkStatus();
}

absl::Status ModelRunner::AllocateFittingKvPool(int32_t num_asked) {
  const uint64_t block_bytes =
      KvPool::BlockBytes(model_, weights_.dtype(), slots_->limits().block_size);
  measured_.num_graphs = graphs_.num_sizes() + 2 * layer_graphs_.num_sizes();
  const double utilization = open_.config().worker().gpu_memory_utilization();
  const bool is_asked = open_.config().engine().kv_cache_memory_bytes() != 0;
  if (!is_asked && utilization > 0.0) measured_.utilization = utilization;
  // Another process may take memory between the look and the allocation.
  for (int tries_left = kPoolTries;; --tries_left) {
    kv_ = KvPool();
    PAGODA_ASSIGN_OR_RETURN(const int32_t num_blocks, FittingKvBlocks(num_asked, block_bytes));
    if (num_blocks == 0) return NoKvBlockFits(block_bytes, measured_);
    slots_->set_num_blocks(num_blocks);
    const absl::Status allocated = AllocateKvPool(num_blocks);
    if (!allocated.ok() && (!absl::IsResourceExhausted(allocated) || tries_left == 0)) {
      return allocated;
    }
    PAGODA_ASSIGN_OR_RETURN(const int64_t all_have, group_.LeastOf(allocated.ok() ? 1 : 0));
    if (all_have != 0) return absl::OkStatus();
  }
}

absl::StatusOr<int32_t> ModelRunner::FittingKvBlocks(int32_t num_asked, uint64_t block_bytes) {
  PAGODA_RETURN_IF_ERROR(backend_->Synchronize());
  PAGODA_RETURN_IF_ERROR(group_.Meet());
  PAGODA_ASSIGN_OR_RETURN(const kernels::DeviceInfo info, backend_->Info());
  measured_.free_bytes = info.free_memory_bytes;
  const uint64_t fitting = KvPoolBytesThatFit(measured_) / block_bytes;
  // No rank takes its pool before all have looked.
  PAGODA_ASSIGN_OR_RETURN(const int64_t num_blocks,
                          group_.LeastOf(static_cast<int64_t>(
                              std::min<uint64_t>(fitting, static_cast<uint64_t>(num_asked)))));
  return static_cast<int32_t>(num_blocks);
}

// A prompt and, where a block has room, one token more: the whole path runs before anybody waits
// for it.
absl::Status ModelRunner::WarmUp() {
  const StepLimits& limits = slots_->limits();
  const internal::v1::StepPlan prompt = SmallPromptPlan(limits);
  PAGODA_RETURN_IF_ERROR(Submit(prompt));
  const int32_t room = std::min(limits.block_size, limits.max_model_len);
  if (static_cast<int32_t>(prompt.row_num_tokens(0)) < room) {
    PAGODA_RETURN_IF_ERROR(Submit(DecodePlan(2, 1)));
  }
  return Reset();
}

// Everything that grows with a step grows here. The prompts go through the first layers alone:
// others take nothing more. Gives the bytes of a recorded decode step.
absl::StatusOr<uint64_t> ModelRunner::MeasureLargestSteps() {
  const StepLimits& limits = slots_->limits();
  ModelConfig first_layers = model_;
  first_layers.num_layers = NumLayersOfEveryKind(model_);
  pass_model_ = &first_layers;
  const absl::Status ran = Submit(LargestPromptPlan(limits));
  pass_model_ = &model_;
  PAGODA_RETURN_IF_ERROR(ran);
  PAGODA_RETURN_IF_ERROR(ReadPendingSteps());
  pending_.clear();
  if (RoomAfterLargestPrompt(limits) < 2) {
    PAGODA_RETURN_IF_ERROR(Reset());
    return 0;
  }
  MakeStepGraphs(limits);
  const int32_t num_sequences = std::min(LargestNumSequences(limits), graphs_.max_size());
  // As it is, then recorded.
  PAGODA_RETURN_IF_ERROR(Submit(DecodePlan(2, num_sequences)));
  PAGODA_RETURN_IF_ERROR(backend_->Synchronize());
  PAGODA_ASSIGN_OR_RETURN(const kernels::DeviceInfo before, backend_->Info());
  PAGODA_RETURN_IF_ERROR(Submit(DecodePlan(3, num_sequences)));
  PAGODA_RETURN_IF_ERROR(backend_->Synchronize());
  PAGODA_ASSIGN_OR_RETURN(const kernels::DeviceInfo after, backend_->Info());
  PAGODA_RETURN_IF_ERROR(graphs_.Forget(*backend_));
  PAGODA_RETURN_IF_ERROR(Reset());
  return before.free_memory_bytes - std::min(before.free_memory_bytes, after.free_memory_bytes);
}

}  // namespace pagoda::engine
