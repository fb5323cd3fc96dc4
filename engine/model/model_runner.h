#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "engine/model/activations.h"
#include "engine/model/architecture.h"
#include "engine/model/batch_inputs.h"
#include "engine/model/forward_pass.h"
#include "engine/model/kv_pool.h"
#include "engine/model/kv_pool_fit.h"
#include "engine/model/model_config.h"
#include "engine/model/model_shard.h"
#include "engine/model/output_constraints.h"
#include "engine/model/position_tables.h"
#include "engine/model/rank_group.h"
#include "engine/model/sample_outputs.h"
#include "engine/model/sampling_inputs.h"
#include "engine/model/slot_table.h"
#include "engine/model/step_graphs.h"
#include "engine/model/weights.h"
#include "kernels/backend.h"
#include "kernels/base/clock.h"
#include "parallel/process_group.h"
#include "parallel/step_executor.h"

namespace pagoda::engine {

// Runs a model on one device. Submit enqueues a whole step and returns; sampled tokens stay on the
// device, where the next step reads them, so steps can be submitted before the results of those
// before were read on the host. Only a sequence whose sampling needs the values of its own last
// tokens (NeedsHistory) makes Submit wait for them. Thread-compatible.
class ModelRunner : public parallel::StepExecutor {
 public:
  using OpenBackendFn = std::function<absl::StatusOr<std::unique_ptr<kernels::Backend>>(
      absl::string_view name, const kernels::BackendOptions& options)>;

  explicit ModelRunner(OpenBackendFn open_backend = kernels::OpenBackend,
                       const Clock* clock = &Clock::Monotonic(),
                       std::unique_ptr<parallel::ProcessGroup> group = nullptr)
      : open_backend_(std::move(open_backend)), clock_(clock), group_(std::move(group)) {}
  ~ModelRunner() override;

  absl::StatusOr<internal::v1::WorkerHello> Open(const internal::v1::OpenWorker& open) override;
  absl::StatusOr<internal::v1::ModelReady> Load(const internal::v1::LoadModel& load,
                                                const ProgressFn& progress) override;
  absl::Status Submit(const internal::v1::StepPlan& plan) override;
  absl::StatusOr<bool> TakeResult(internal::v1::StepResult* result) override;
  absl::StatusOr<bool> DoIdleWork() override;
  absl::Status Reset() override;

 private:
  // A step that was submitted. Results of logit chunks but the last are in `result` already.
  struct PendingStep {
    internal::v1::StepResult result;
    uint64_t event = 0;
    // The last chunk and what it gave, on the host once the event has passed.
    std::vector<LogitRow> rows;
    SampledChunk sampled;
    // Its tokens have joined the slots and its rows the result.
    bool is_read = false;
  };

  absl::Status LoadModelWeights(const ModelConfig& whole_model, const ProgressFn& progress);
  // Everything that steps need but the KV pool.
  absl::Status AllocateStepMemory(const StepLimits& limits);
  absl::Status AllocateKvPool(int32_t num_blocks);
  void MakeStepGraphs(const StepLimits& limits);
  // As many as there is memory for, at most `num_asked`.
  absl::Status AllocateFittingKvPool(int32_t num_asked);
  // Of all ranks, the fewest that one has room for; 0: somewhere none fits.
  absl::StatusOr<int32_t> FittingKvBlocks(int32_t num_asked, uint64_t block_bytes);
  absl::Status WarmUp();
  absl::StatusOr<uint64_t> MeasureLargestSteps();
  // Waits for the steps in flight and reads their tokens.
  absl::Status ReadPendingSteps();
  void ReadStep(PendingStep& step);
  void ReadChunk(absl::Span<const LogitRow> rows,
                 const SampledChunk& sampled,
                 internal::v1::StepResult& result);
  // What the device was given to do for the step.
  void NoteWork(internal::v1::StepResult& result);
  absl::Status CopyBlocks();
  absl::Status RunStep(absl::Span<const StepRow> rows, int set_idx, PendingStep& step);
  // Enqueues the copies of what sampling needs to know; `padded_rows` rows of the head are
  // computed.
  absl::StatusOr<kernels::SampleParams> BuildSampling(absl::Span<const LogitRow> rows,
                                                      int set_idx,
                                                      int32_t padded_rows);
  absl::StatusOr<SampledChunk> Sample(absl::Span<const LogitRow> rows,
                                      const kernels::SampleParams& params,
                                      int set_idx);
  absl::Status RunLogits(absl::Span<const LogitRow> rows, int set_idx, PendingStep& step);
  // The size of graph that the step is for; 0: none.
  int32_t GraphSize(absl::Span<const StepRow> rows) const;
  absl::Status RunGraph(absl::Span<const LogitRow> rows,
                        int32_t size,
                        int set_idx,
                        PendingStep& step);
  ForwardPass MakePass() const;

  const OpenBackendFn open_backend_;
  const Clock* const clock_;
  internal::v1::OpenWorker open_;
  std::unique_ptr<kernels::Backend> backend_;
  RankGroup group_;          // ends before the backend
  MeasuredMemory measured_;  // complete after Load

  // ---- Made by Load, in this order.
  ModelShard shard_;
  ModelConfig model_;                        // the shard's
  const ModelConfig* pass_model_ = &model_;  // what steps run
  const Architecture* architecture_ = nullptr;
  DType activation_dtype_ = DType::kFloat32;
  Weights weights_;
  KvPool kv_;
  PositionTables positions_;
  Activations activations_;
  BatchInputs inputs_;
  SamplingInputs sampling_;
  SampleOutputs outputs_;
  TensorRanks ranks_;
  absl::optional<SlotTable> slots_;
  StepGraphs graphs_;        // whole steps in which every sequence computes one token
  StepGraphs layer_graphs_;  // what comes before the logits of other steps
  absl::optional<OutputConstraints> constraints_;
  // The backend has changed a choice since graphs were recorded.
  bool graphs_are_old_ = false;

  // Host memory of a step is one of `num_sets_`, taken in turn.
  int num_sets_ = 2;
  uint64_t num_submitted_ = 0;
  std::deque<PendingStep> pending_;
};

}  // namespace pagoda::engine
