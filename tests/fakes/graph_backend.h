#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"

namespace pagoda::kernels {

// A backend that records graphs, made of one that cannot: ops between BeginGraph and EndGraph are
// kept with the parameters they were given and run again by LaunchGraph. As on a device, what they
// read from memory may change between replays; a batch whose numbers or addresses have changed is
// an error. Thread-compatible.
class GraphBackend final : public Backend {
 public:
  explicit GraphBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  // Recorded, whether dropped or not.
  int num_graphs() const { return static_cast<int>(graphs_.size()); }
  int num_launches() const { return num_launches_; }

  absl::string_view name() const override { return inner_->name(); }
  absl::StatusOr<DeviceInfo> Info() override;
  absl::StatusOr<DType> ActivationDType(DType weight_dtype) const override {
    return inner_->ActivationDType(weight_dtype);
  }
  absl::StatusOr<Buffer> Allocate(size_t size_bytes, absl::string_view purpose) override;
  absl::StatusOr<Buffer> AllocateHost(size_t size_bytes, absl::string_view purpose) override;
  absl::Status CopyToDevice(void* device, const void* host, size_t size_bytes) override;
  absl::Status CopyToHost(void* host, const void* device, size_t size_bytes) override;
  absl::Status Synchronize() override;
  absl::StatusOr<uint64_t> RecordEvent() override { return inner_->RecordEvent(); }
  absl::StatusOr<bool> EventPassed(uint64_t event) override { return inner_->EventPassed(event); }

  bool supports_graphs() const override { return true; }
  absl::Status BeginGraph() override;
  absl::StatusOr<GraphId> EndGraph() override;
  absl::Status LaunchGraph(GraphId graph) override;
  absl::Status DropGraph(GraphId graph) override;
  // Over MakeExchangeGroup, with ops that are recorded too.
  bool supports_groups() const override { return true; }
  absl::StatusOr<std::unique_ptr<DeviceGroup>> MakeGroup(
      const DeviceGroupOptions& options) override;
  absl::StatusOr<bool> Tune() override { return num_guesses > 0 && num_guesses-- > 0; }

  // As Info tells it.
  std::string pci_bus_id;
  // Choices that Tune can still settle.
  int num_guesses = 0;

  WeightFormat PreferredFormat(DType dtype, int64_t n, int64_t k) const override {
    return inner_->PreferredFormat(dtype, n, k);
  }
  size_t LinearBytes(const LinearWeight& weight) const override {
    return inner_->LinearBytes(weight);
  }
  absl::Status PackLinear(const PackLinearParams& params) override {
    return inner_->PackLinear(params);
  }
  absl::Status FillNormal(const FillNormalParams& params) override {
    return inner_->FillNormal(params);
  }

  absl::Status ResolveTokens(const ResolveTokensParams& params) override;
  absl::Status Scatter(const ScatterParams& params) override;
  absl::Status Embedding(const EmbeddingParams& params) override;
  absl::Status GatherRows(const GatherRowsParams& params) override;
  absl::Status RmsNorm(const RmsNormParams& params) override;
  absl::Status SiluMul(const SiluMulParams& params) override;
  absl::Status Linear(const LinearParams& params) override;
  absl::Status CopyBlocks(const CopyBlocksParams& params) override;
  absl::Status PrepareAttention(const AttentionBatch& batch) override;
  absl::Status RopeKvWrite(const RopeKvWriteParams& params) override;
  absl::Status PagedAttention(const PagedAttentionParams& params) override;
  absl::Status Sample(const SampleParams& params) override;

 private:
  using Op = std::function<absl::Status()>;
  class Group;

  // Runs the op, or keeps it.
  absl::Status Do(Op op);
  // An op on the batch that was prepared last, at its replay too.
  template <typename Params>
  absl::Status DoWithBatch(const Params& params, absl::Status (Backend::*op)(const Params&));
  absl::Status RefuseWhileRecording(absl::string_view call) const;

  const std::unique_ptr<Backend> inner_;
  bool is_recording_ = false;
  std::vector<Op> recorded_;
  std::vector<std::vector<Op>> graphs_;
  int num_launches_ = 0;
  AttentionBatch prepared_;
};

}  // namespace pagoda::kernels
