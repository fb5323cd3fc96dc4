#include "engine/model/model_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/logit_rows.h"
#include "engine/model/step_results.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

using internal::v1::StepPlan;
using internal::v1::StepResult;

int32_t NumTokens(absl::Span<const StepRow> rows) {
  int32_t num_tokens = 0;
  for (const StepRow& row : rows) num_tokens += row.num_tokens;
  return num_tokens;
}

}  // namespace

ModelRunner::~ModelRunner() {
  if (backend_ == nullptr) return;
  const bool has_steps = !pending_.empty();
  if (!has_steps) {
    graphs_.Forget(*backend_).IgnoreError();
    layer_graphs_.Forget(*backend_).IgnoreError();
  }
  group_.Close(has_steps);
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

void ModelRunner::NoteWork(StepResult& result) {
  const StepGraphs::Counts whole = graphs_.TakeCounts(), layers = layer_graphs_.TakeCounts();
  internal::v1::DeviceWork& work = *result.add_device_work();
  work.set_graph_replays(whole.num_replays + layers.num_replays);
  work.set_graph_captures(whole.num_captures + layers.num_captures);
  work.set_eager_steps(work.graph_replays() == 0 ? 1 : 0);
  work.set_collective_ns(static_cast<uint64_t>(group_.TakeOpNs()));
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
           (NeedsHistory(slot.sampling) ||
            constraints_->MayForce(row.slot, slot, row.end_position()));
  };
  if (std::any_of(rows.begin(), rows.end(), needs_token)) {
    PAGODA_RETURN_IF_ERROR(ReadPendingSteps());
  }
  PendingStep step;
  step.result.set_step_id(plan.step_id());
  step.result.set_start_ns(static_cast<uint64_t>(start_ns));
  const int set_idx = static_cast<int>(num_submitted_++ % static_cast<uint64_t>(num_sets_));
  if (!rows.empty()) {
    PAGODA_RETURN_IF_ERROR(RunStep(rows, set_idx, step));
    NoteWork(step.result);
  }
  PAGODA_ASSIGN_OR_RETURN(step.event, backend_->RecordEvent());
  group_.NoteStep();
  pending_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status ModelRunner::ReadPendingSteps() {
  PAGODA_RETURN_IF_ERROR(backend_->Synchronize());
  PAGODA_RETURN_IF_ERROR(group_.Poll());
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
    PAGODA_RETURN_IF_ERROR(group_.Poll());
    ReadStep(step);
  }
  *result = std::move(step.result);
  pending_.pop_front();
  return true;
}

absl::StatusOr<bool> ModelRunner::DoIdleWork() {
  // Times on a device that others use at the same time say nothing.
  if (group_.ranks_on_device() > 1) return false;
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
