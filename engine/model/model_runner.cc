#include "engine/model/model_runner.h"

#include <algorithm>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/checkpoint.h"
#include "engine/model/logit_rows.h"
#include "engine/model/step_limits.h"
#include "engine/model/step_results.h"
#include "engine/model/warm_up_plans.h"
#include "engine/model/weight_loader.h"
#include "kernels/base/check.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"
#include "pagoda_version.h"

namespace pagoda::engine {
namespace {

using internal::v1::StepPlan;
using internal::v1::StepResult;

// Progress is told at most so often: a message for every tensor would be noise.
constexpr int64_t kProgressPeriodNs = 100'000'000;
// After which a KV pool that others leave no room for is a failure.
constexpr int kPoolTries = 4;

// Steps with prompts are recorded up to so many tokens. Beyond, products are bound by arithmetic,
// so that padding costs time, and launching has long ended before the device has.
constexpr int32_t kMaxRecordedTokens = 256;

double SecondsSince(const Clock& clock, int64_t start_ns) {
  return static_cast<double>(clock.NowNs() - start_ns) * 1e-9;
}

int32_t NumTokens(absl::Span<const StepRow> rows) {
  int32_t num_tokens = 0;
  for (const StepRow& row : rows) num_tokens += row.num_tokens;
  return num_tokens;
}

}  // namespace

absl::StatusOr<internal::v1::WorkerHello> ModelRunner::Open(const internal::v1::OpenWorker& open) {
  open_ = open;
  const internal::v1::WorkerConfig& worker = open.config().worker();
  if (open.stage() != 0 || (open.tensor_ranks() > 1 && worker.device() != "cpu")) {
    return absl::UnimplementedError(absl::StrCat("stage ",
                                                 open.stage(),
                                                 " of a model over ",
                                                 open.tensor_ranks(),
                                                 " tensor ranks on ",
                                                 worker.device(),
                                                 " is not supported; expected 0 and 1"));
  }
  const uint32_t group_ranks = group_ == nullptr ? 1 : static_cast<uint32_t>(group_->num_ranks());
  if (std::max(open.tensor_ranks(), 1u) != group_ranks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a worker of ", open.tensor_ranks(), " tensor ranks in a group of ", group_ranks));
  }
  PAGODA_ASSIGN_OR_RETURN(backend_,
                          open_backend_(worker.device(),
                                        {.device_index = static_cast<int>(worker.device_index()),
                                         .cpu_threads = static_cast<int>(worker.cpu_threads()),
                                         .cpu_isa = worker.cpu_isa(),
                                         .backend_dir = worker.backend_dir(),
                                         .step_clock_path = worker.step_clock_path()}));
  PAGODA_ASSIGN_OR_RETURN(const kernels::DeviceInfo info, backend_->Info());
  measured_.total_bytes = info.total_memory_bytes;
  measured_.free_at_first_bytes = info.free_memory_bytes;
  internal::v1::WorkerHello hello;
  hello.set_version(PAGODA_VERSION);
  hello.set_pid(getpid());
  hello.set_device(worker.device());
  hello.set_device_name(info.name);
  hello.set_total_memory_bytes(info.total_memory_bytes);
  hello.set_free_memory_bytes(info.free_memory_bytes);
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
    return FillDummyWeights(*backend_, config.dummy_seed(), weights_);
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
  ranks_ = {.group = group_.get(), .first_id = shard_.first_id, .num_ids = shard_.num_ids};
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
  kv_ = KvPool();
  // Another process may take memory between the look and the allocation.
  for (int tries_left = kPoolTries;; --tries_left) {
    PAGODA_ASSIGN_OR_RETURN(const kernels::DeviceInfo info, backend_->Info());
    measured_.free_bytes = info.free_memory_bytes;
    const uint64_t fitting = KvPoolBytesThatFit(measured_) / block_bytes;
    if (fitting == 0) return NoKvBlockFits(block_bytes, measured_);
    const auto num_blocks =
        static_cast<int32_t>(std::min<uint64_t>(fitting, static_cast<uint64_t>(num_asked)));
    slots_->set_num_blocks(num_blocks);
    const absl::Status allocated = AllocateKvPool(num_blocks);
    if (!absl::IsResourceExhausted(allocated) || tries_left == 0) return allocated;
  }
}

// A prompt and, where a block has room, one token more: the whole path runs before anybody waits
// for it.
absl::Status ModelRunner::WarmUp() {
  const StepLimits& limits = slots_->limits();
  const StepPlan prompt = SmallPromptPlan(limits);
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

ForwardPass ModelRunner::MakePass() const {
  return {.backend = backend_.get(),
          .model = pass_model_,
          .weights = &weights_,
          .kv = &kv_,
          .positions = &positions_,
          .activations = &activations_,
          .dtype = activation_dtype_,
          .batch = &inputs_.batch(),
          .tokens = inputs_.tokens(),
          .ranks = shard_.is_whole() ? nullptr : &ranks_};
}

absl::StatusOr<kernels::SampleParams> ModelRunner::BuildSampling(absl::Span<const LogitRow> rows,
                                                                 int set_idx,
                                                                 int32_t padded_rows) {
  kernels::SampleParams params = {.logits = activations_.logits(),
                                  .logits_stride = activations_.plan().logits_stride,
                                  .vocab_size = slots_->limits().vocab_size,
                                  .last_tokens = inputs_.last_tokens(),
                                  .num_slots = slots_->limits().num_slots};
  PAGODA_RETURN_IF_ERROR(
      sampling_.Build(*backend_, rows, *slots_, &*constraints_, set_idx, padded_rows, &params));
  outputs_.SetParams(MaxTop(rows), &params);
  return params;
}

absl::StatusOr<SampledChunk> ModelRunner::Sample(absl::Span<const LogitRow> rows,
                                                 const kernels::SampleParams& params,
                                                 int set_idx) {
  PAGODA_RETURN_IF_ERROR(backend_->Sample(params));
  const bool with_logprobs = std::any_of(
      rows.begin(), rows.end(), [](const LogitRow& row) { return row.num_logprobs >= 0; });
  return outputs_.CopyToHost(*backend_, params.rows, with_logprobs, params.max_top, set_idx);
}

absl::Status ModelRunner::RunLogits(absl::Span<const LogitRow> rows,
                                    int set_idx,
                                    PendingStep& step) {
  const ForwardPass pass = MakePass();
  size_t begin = 0;
  while (begin < rows.size()) {
    // As many rows as fit with the most top entries that one of them wants.
    int32_t max_top = 0;
    size_t end = begin;
    while (end < rows.size()) {
      max_top = std::max(max_top, rows[end].num_logprobs);
      if (static_cast<int32_t>(end - begin) >= outputs_.MaxRows(max_top)) break;
      ++end;
    }
    const absl::Span<const LogitRow> chunk = rows.subspan(begin, end - begin);
    PAGODA_ASSIGN_OR_RETURN(const kernels::SampleParams params,
                            BuildSampling(chunk, set_idx, /*padded_rows=*/0));
    PAGODA_RETURN_IF_ERROR(ComputeLogits(pass, sampling_.batch_rows(), params.rows));
    PAGODA_ASSIGN_OR_RETURN(const SampledChunk sampled, Sample(chunk, params, set_idx));
    begin = end;
    if (begin == rows.size()) {
      step.rows.assign(chunk.begin(), chunk.end());
      step.sampled = sampled;
    } else {
      // The next chunk needs the same memory. Only prompt log-probabilities come here, or a
      // vocabulary so large that the sequences of a step do not fit one chunk. Steps before go
      // first: tokens join their sequences in order.
      PAGODA_RETURN_IF_ERROR(ReadPendingSteps());
      ReadChunk(chunk, sampled, step.result);
    }
  }
  return absl::OkStatus();
}

int32_t ModelRunner::GraphSize(absl::Span<const StepRow> rows) const {
  int32_t max_top = 0;
  for (const StepRow& row : rows) {
    const SlotState& slot = slots_->slot(row.slot);
    // A prompt of which positions are to be scored has more rows of logits than it samples.
    if (row.num_tokens != 1 || !row.samples || row.first_position + 1 < slot.num_prompt_tokens) {
      return 0;
    }
    max_top = std::max(max_top, static_cast<int32_t>(slot.sampling.num_logprobs()));
  }
  const int32_t num_rows = static_cast<int32_t>(rows.size());
  return num_rows <= outputs_.MaxRows(max_top) ? graphs_.SizeFor(num_rows) : 0;
}

// What a graph holds is the same for all steps of a size: from the choice of tokens to the logits.
// Sampling follows it, since what it launches and copies depends on what the sequences ask for.
absl::Status ModelRunner::RunGraph(absl::Span<const LogitRow> rows,
                                   int32_t size,
                                   int set_idx,
                                   PendingStep& step) {
  PAGODA_ASSIGN_OR_RETURN(const kernels::SampleParams params, BuildSampling(rows, set_idx, size));
  PAGODA_RETURN_IF_ERROR(graphs_.Run(*backend_, size, [&]() -> absl::Status {
    PAGODA_RETURN_IF_ERROR(inputs_.ResolveTokens(*backend_));
    PAGODA_RETURN_IF_ERROR(architecture_->run_layers(MakePass()));
    return ComputeLogits(MakePass(), sampling_.batch_rows(), size);
  }));
  PAGODA_ASSIGN_OR_RETURN(step.sampled, Sample(rows, params, set_idx));
  step.rows.assign(rows.begin(), rows.end());
  return absl::OkStatus();
}

absl::Status ModelRunner::CopyBlocks() {
  const absl::Span<const BlockCopy> copies = slots_->block_copies();
  if (copies.empty()) return absl::OkStatus();
  PAGODA_ASSIGN_OR_RETURN(const int32_t* pairs, inputs_.SendBlockCopies(*backend_, copies));
  return backend_->CopyBlocks(kv_.Copies(pairs, static_cast<int64_t>(copies.size())));
}

absl::Status ModelRunner::RunStep(absl::Span<const StepRow> rows, int set_idx, PendingStep& step) {
  const int32_t graph_size = GraphSize(rows);
  const int32_t layers_size = graph_size == 0 ? layer_graphs_.SizeFor(NumTokens(rows)) : 0;
  PAGODA_RETURN_IF_ERROR(
      inputs_.Build(*backend_, rows, *slots_, set_idx, std::max(graph_size, layers_size)));
  PAGODA_RETURN_IF_ERROR(CopyBlocks());
  PAGODA_RETURN_IF_ERROR(backend_->PrepareAttention(inputs_.batch()));
  const std::vector<LogitRow> logit_rows = LogitRows(rows, *slots_, inputs_);
  if (graph_size != 0) return RunGraph(logit_rows, graph_size, set_idx, step);
  const auto enqueue_layers = [&]() -> absl::Status {
    PAGODA_RETURN_IF_ERROR(inputs_.ResolveTokens(*backend_));
    return architecture_->run_layers(MakePass());
  };
  PAGODA_RETURN_IF_ERROR(layers_size == 0
                             ? enqueue_layers()
                             : layer_graphs_.Run(*backend_, layers_size, enqueue_layers));
  return RunLogits(logit_rows, set_idx, step);
}

absl::Status ModelRunner::Submit(const StepPlan& plan) {
  PAGODA_CHECK(slots_.has_value());
  if (pending_.size() >= static_cast<size_t>(num_sets_)) {
    return absl::InternalError(absl::StrCat("step ",
                                            plan.step_id(),
                                            " came with ",
                                            pending_.size(),
                                            " steps in flight; expected fewer than ",
                                            num_sets_));
  }
  const int64_t start_ns = clock_->NowNs();
  PAGODA_ASSIGN_OR_RETURN(const absl::Span<const StepRow> rows, slots_->Apply(plan));
  PAGODA_RETURN_IF_ERROR(constraints_->Apply(plan, *slots_));
  const auto needs_token = [this](const StepRow& row) {
    const SlotState& slot = slots_->slot(row.slot);
    return row.samples && row.num_drafts == 0 &&
           row.end_position() > static_cast<int32_t>(slot.tokens.size()) &&
           NeedsHistory(slot.sampling);
  };
  if (std::any_of(rows.begin(), rows.end(), needs_token)) {
    PAGODA_RETURN_IF_ERROR(ReadPendingSteps());
  }
  PendingStep step;
  step.result.set_step_id(plan.step_id());
  step.result.set_start_ns(static_cast<uint64_t>(start_ns));
  const int set_idx = static_cast<int>(num_submitted_++ % static_cast<uint64_t>(num_sets_));
  if (!rows.empty()) PAGODA_RETURN_IF_ERROR(RunStep(rows, set_idx, step));
  PAGODA_ASSIGN_OR_RETURN(step.event, backend_->RecordEvent());
  pending_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status ModelRunner::ReadPendingSteps() {
  PAGODA_RETURN_IF_ERROR(backend_->Synchronize());
  for (PendingStep& step : pending_) ReadStep(step);
  return absl::OkStatus();
}

void ModelRunner::ReadStep(PendingStep& step) {
  if (std::exchange(step.is_read, true)) return;
  ReadChunk(step.rows, step.sampled, step.result);
  step.result.set_end_ns(static_cast<uint64_t>(clock_->NowNs()));
}

void ModelRunner::ReadChunk(absl::Span<const LogitRow> rows,
                            const SampledChunk& sampled,
                            StepResult& result) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const LogitRow& row = rows[i];
    const bool failed = sampled.tokens[i] == kernels::kNonFinite;
    if (row.is_prompt) {
      if (failed) AddFailedSlot(row.slot, result);
      AddPromptLogprobs(sampled, i, row, result);
      continue;
    }
    // A failed sequence ends; until the plan says so, something must stand in its next place.
    const TokenId token = failed ? 0 : sampled.tokens[i];
    if (!row.is_drafted) {
      slots_->AppendKnownToken(row.slot, row.generation, token);
    } else if (!slots_->AcceptDrafted(row.slot, row.generation, row.position, token)) {
      continue;  // after a draft that was wrong
    }
    if (failed) {
      AddFailedSlot(row.slot, result);
      continue;
    }
    if (!constraints_->Conclude(row.slot, row.generation, *slots_, &result)) continue;
    AddSampledToken(row.slot, static_cast<uint32_t>(token), result);
    if (row.num_logprobs >= 0) AddTokenLogprobs(sampled, i, row, result);
  }
}

absl::StatusOr<bool> ModelRunner::TakeResult(StepResult* result) {
  if (pending_.empty()) return false;
  PendingStep& step = pending_.front();
  if (!step.is_read) {
    PAGODA_ASSIGN_OR_RETURN(const bool passed, backend_->EventPassed(step.event));
    if (!passed) return false;
    ReadStep(step);
  }
  *result = std::move(step.result);
  pending_.pop_front();
  return true;
}

absl::StatusOr<bool> ModelRunner::DoIdleWork() {
  PAGODA_ASSIGN_OR_RETURN(const bool tuned, backend_->Tune());
  graphs_are_old_ |= tuned;
  if (tuned || !graphs_are_old_) return tuned;
  graphs_are_old_ = false;
  PAGODA_RETURN_IF_ERROR(graphs_.Forget(*backend_));
  PAGODA_RETURN_IF_ERROR(layer_graphs_.Forget(*backend_));
  return false;
}

absl::Status ModelRunner::Reset() {
  PAGODA_RETURN_IF_ERROR(backend_->Synchronize());
  pending_.clear();
  slots_->Reset();
  constraints_.emplace(slots_->limits().num_slots, slots_->limits().vocab_size);
  return absl::OkStatus();
}

}  // namespace pagoda::engine
