#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "kernels/cuda/attention_runner.h"
#include "kernels/cuda/device_context.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/sample/sampler.h"
#include "kernels/cuda/step_clock.h"
#include "kernels/cuda/stream_progress.h"
#include "kernels/cuda/weight_uploader.h"

namespace pagoda::kernels::cuda {

// One NVIDIA GPU and one stream. Everything an op needs besides its parameters is allocated when
// the backend opens or when a shape is first seen; in the steady state an op only launches.
//
// Graphs. Everything ops read from device memory may change between replays. What they were given
// as numbers may not: counts of rows, shapes, strides, addresses, linear's m; and a graph recorded
// while the prepared batch had only decode (or only prefill) sequences replays only for such
// batches, which LaunchGraph checks. A recorded Sample serves any row_params. Run a step once
// before recording it, so that plans are measured and geometries known.
class CudaBackend : public Backend {
 public:
  static absl::StatusOr<std::unique_ptr<Backend>> Create(const BackendOptions& options);
  ~CudaBackend() override;

  absl::string_view name() const override { return "cuda"; }
  absl::StatusOr<DeviceInfo> Info() override;
  absl::StatusOr<DType> ActivationDType(DType weight_dtype) const override;

  absl::StatusOr<Buffer> Allocate(size_t size_bytes, absl::string_view purpose) override;
  absl::StatusOr<Buffer> AllocateHost(size_t size_bytes, absl::string_view purpose) override;
  absl::Status CopyToDevice(void* device, const void* host, size_t size_bytes) override;
  absl::Status CopyToHost(void* host, const void* device, size_t size_bytes) override;

  absl::Status Synchronize() override;
  absl::StatusOr<uint64_t> RecordEvent() override;
  absl::StatusOr<bool> EventPassed(uint64_t event) override;

  bool supports_graphs() const override { return true; }
  absl::Status BeginGraph() override;
  absl::StatusOr<GraphId> EndGraph() override;
  absl::Status LaunchGraph(GraphId graph) override;
  absl::Status DropGraph(GraphId graph) override;

  bool supports_groups() const override { return true; }
  absl::StatusOr<std::unique_ptr<DeviceGroup>> MakeGroup(
      const DeviceGroupOptions& options) override;

  absl::StatusOr<bool> Tune() override;

  WeightFormat PreferredFormat(DType dtype, int64_t n, int64_t k) const override;
  size_t LinearBytes(const LinearWeight& weight) const override;
  absl::Status PackLinear(const PackLinearParams& params) override;
  absl::Status FillNormal(const FillNormalParams& params) override;

  absl::Status ResolveTokens(const ResolveTokensParams& params) override;
  absl::Status Scatter(const ScatterParams& params) override;
  absl::Status Embedding(const EmbeddingParams& params) override;
  absl::Status AddEmbedding(const EmbeddingParams& params) override;
  absl::Status GatherRows(const GatherRowsParams& params) override;
  absl::Status RmsNorm(const RmsNormParams& params) override;
  absl::Status LayerNorm(const LayerNormParams& params) override;
  absl::Status HeadNorm(const HeadNormParams& params) override;
  absl::Status SiluMul(const SiluMulParams& params) override;
  absl::Status Activate(const ActivateParams& params) override;
  absl::Status AddScaled(const AddScaledParams& params) override;
  absl::Status Linear(const LinearParams& params) override;
  bool SupportsFusedLinear(const FusedLinearParams& params) override;
  absl::Status FusedLinear(const FusedLinearParams& params) override;
  absl::Status RouteExperts(const RouteExpertsParams& params) override;
  absl::Status GroupedLinear(const GroupedLinearParams& params) override;
  absl::Status CombineExperts(const CombineExpertsParams& params) override;
  absl::Status PrepareAttention(const AttentionBatch& batch) override;
  uint32_t AttentionVariant() const override;
  absl::Status CopyBlocks(const CopyBlocksParams& params) override;
  absl::Status RopeKvWrite(const RopeKvWriteParams& params) override;
  absl::Status PagedAttention(const PagedAttentionParams& params) override;
  absl::Status AdjustLogits(const AdjustLogitsParams& params) override;
  absl::Status Sample(const SampleParams& params) override;

  // For tests and benchmarks of this folder.
  const DeviceContext& context() const { return context_; }
  LinearRunner& linear() { return *linear_; }

 private:
  // A graph and what it may be replayed for.
  struct Graph {
    cudaGraphExec_t exec = nullptr;
    AttentionRunner::Launches launches;
    bool has_attention = false;
  };

  CudaBackend() = default;
  absl::Status Open(const BackendOptions& options);
  // Names op and device in an error.
  absl::Status Finish(absl::string_view op, const absl::Status& status) const;
  absl::Status FinishCall(absl::string_view op, absl::string_view call, cudaError_t error) const;
  bool IsPinned(const void* host, size_t size_bytes) const;

  // ---- Constant after Open, but for the state that the context names.
  DeviceContext context_;
  // ---- State. Destroyed from the bottom up, before the stream.
  std::unique_ptr<LinearRunner> linear_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<AttentionRunner> attention_;
  std::unique_ptr<WeightUploader> uploader_;
  std::unique_ptr<StreamProgress> progress_;
  std::unique_ptr<StepClock> step_clock_;  // null unless asked for
  // Memory of AllocateHost that is alive, by address. Shared with the buffers, which may be freed
  // last.
  std::shared_ptr<std::map<const char*, size_t>> pinned_ =
      std::make_shared<std::map<const char*, size_t>>();
  std::vector<Graph> graphs_;
  bool recorded_attention_ = false;
};

}  // namespace pagoda::kernels::cuda
