#include "tests/fakes/graph_backend.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "tests/fakes/exchange_group.h"

namespace pagoda::kernels {
namespace {

bool SameNumbersAndAddresses(const AttentionBatch& a, const AttentionBatch& b) {
  return a.num_seqs == b.num_seqs && a.num_rows == b.num_rows && a.row_offsets == b.row_offsets &&
         a.context_lens == b.context_lens && a.block_tables == b.block_tables &&
         a.block_table_stride == b.block_table_stride && a.positions == b.positions &&
         a.kv_slots == b.kv_slots;
}

}  // namespace

absl::Status GraphBackend::RefuseWhileRecording(absl::string_view call) const {
  if (!is_recording_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(call, " while a graph is recorded"));
}

absl::Status GraphBackend::Do(Op op) {
  if (!is_recording_) return op();
  recorded_.push_back(std::move(op));
  return absl::OkStatus();
}

template <typename Params>
absl::Status GraphBackend::DoWithBatch(const Params& params,
                                       absl::Status (Backend::*op)(const Params&)) {
  return Do([this, params, op, expected = *params.batch] {
    if (!SameNumbersAndAddresses(prepared_, expected)) {
      return absl::FailedPreconditionError("the batch differs from the recorded one");
    }
    Params now = params;
    now.batch = &prepared_;
    return (inner_.get()->*op)(now);
  });
}

absl::StatusOr<DeviceInfo> GraphBackend::Info() {
  PAGODA_ASSIGN_OR_RETURN(DeviceInfo info, inner_->Info());
  info.pci_bus_id = pci_bus_id;
  return info;
}

absl::StatusOr<Buffer> GraphBackend::Allocate(size_t size_bytes, absl::string_view purpose) {
  PAGODA_RETURN_IF_ERROR(RefuseWhileRecording("Allocate"));
  return inner_->Allocate(size_bytes, purpose);
}

absl::StatusOr<Buffer> GraphBackend::AllocateHost(size_t size_bytes, absl::string_view purpose) {
  PAGODA_RETURN_IF_ERROR(RefuseWhileRecording("AllocateHost"));
  return inner_->AllocateHost(size_bytes, purpose);
}

absl::Status GraphBackend::CopyToDevice(void* device, const void* host, size_t size_bytes) {
  PAGODA_RETURN_IF_ERROR(RefuseWhileRecording("CopyToDevice"));
  return inner_->CopyToDevice(device, host, size_bytes);
}

absl::Status GraphBackend::CopyToHost(void* host, const void* device, size_t size_bytes) {
  PAGODA_RETURN_IF_ERROR(RefuseWhileRecording("CopyToHost"));
  return inner_->CopyToHost(host, device, size_bytes);
}

absl::Status GraphBackend::Synchronize() {
  PAGODA_RETURN_IF_ERROR(RefuseWhileRecording("Synchronize"));
  return inner_->Synchronize();
}

absl::Status GraphBackend::BeginGraph() {
  PAGODA_RETURN_IF_ERROR(RefuseWhileRecording("BeginGraph"));
  is_recording_ = true;
  recorded_.clear();
  return absl::OkStatus();
}

absl::StatusOr<GraphId> GraphBackend::EndGraph() {
  if (!is_recording_) return absl::FailedPreconditionError("EndGraph without BeginGraph");
  is_recording_ = false;
  graphs_.push_back(std::move(recorded_));
  return static_cast<GraphId>(graphs_.size() - 1);
}

absl::Status GraphBackend::LaunchGraph(GraphId graph) {
  PAGODA_RETURN_IF_ERROR(RefuseWhileRecording("LaunchGraph"));
  ++num_launches_;
  for (const Op& op : graphs_.at(static_cast<size_t>(graph))) PAGODA_RETURN_IF_ERROR(op());
  return absl::OkStatus();
}

absl::Status GraphBackend::DropGraph(GraphId graph) {
  graphs_.at(static_cast<size_t>(graph)) = {
      [] { return absl::FailedPreconditionError("the graph was dropped"); }};
  return absl::OkStatus();
}

class GraphBackend::Group final : public DeviceGroup {
 public:
  Group(GraphBackend* backend, const DeviceGroupOptions& options)
      : backend_(*backend), inner_(MakeExchangeGroup(options)) {}

  int rank() const override { return inner_->rank(); }
  int num_ranks() const override { return inner_->num_ranks(); }
  absl::string_view transport() const override { return inner_->transport(); }
  absl::Status AllReduceSum(const AllReduceParams& params) override {
    return backend_.Do([this, params] { return inner_->AllReduceSum(params); });
  }
  bool SupportsAllReduceNorm(const AllReduceNormParams& params) const override {
    return inner_->SupportsAllReduceNorm(params);
  }
  absl::Status AllReduceNorm(const AllReduceNormParams& params) override {
    return backend_.Do([this, params] { return inner_->AllReduceNorm(params); });
  }
  absl::Status AllGather(const AllGatherParams& params) override {
    return backend_.Do([this, params] { return inner_->AllGather(params); });
  }
  absl::Status Broadcast(const BroadcastParams& params) override {
    return backend_.Do([this, params] { return inner_->Broadcast(params); });
  }
  absl::Status Poll() override { return inner_->Poll(); }
  void Abort() override { inner_->Abort(); }

 private:
  GraphBackend& backend_;
  const std::unique_ptr<DeviceGroup> inner_;
};

absl::StatusOr<std::unique_ptr<DeviceGroup>> GraphBackend::MakeGroup(
    const DeviceGroupOptions& options) {
  PAGODA_RETURN_IF_ERROR(RefuseWhileRecording("MakeGroup"));
  return std::make_unique<Group>(this, options);
}

absl::Status GraphBackend::ResolveTokens(const ResolveTokensParams& params) {
  return Do([this, params] { return inner_->ResolveTokens(params); });
}

absl::Status GraphBackend::Scatter(const ScatterParams& params) {
  return Do([this, params] { return inner_->Scatter(params); });
}

absl::Status GraphBackend::Embedding(const EmbeddingParams& params) {
  return Do([this, params] { return inner_->Embedding(params); });
}

absl::Status GraphBackend::GatherRows(const GatherRowsParams& params) {
  return Do([this, params] { return inner_->GatherRows(params); });
}

absl::Status GraphBackend::RmsNorm(const RmsNormParams& params) {
  return Do([this, params] { return inner_->RmsNorm(params); });
}

absl::Status GraphBackend::SiluMul(const SiluMulParams& params) {
  return Do([this, params] { return inner_->SiluMul(params); });
}

absl::Status GraphBackend::Linear(const LinearParams& params) {
  return Do([this, params] { return inner_->Linear(params); });
}

// What is copied changes from step to step.
absl::Status GraphBackend::CopyBlocks(const CopyBlocksParams& params) {
  PAGODA_RETURN_IF_ERROR(RefuseWhileRecording("CopyBlocks"));
  return inner_->CopyBlocks(params);
}

absl::Status GraphBackend::PrepareAttention(const AttentionBatch& batch) {
  PAGODA_RETURN_IF_ERROR(RefuseWhileRecording("PrepareAttention"));
  prepared_ = batch;
  return inner_->PrepareAttention(batch);
}

absl::Status GraphBackend::RopeKvWrite(const RopeKvWriteParams& params) {
  return DoWithBatch(params, &Backend::RopeKvWrite);
}

absl::Status GraphBackend::PagedAttention(const PagedAttentionParams& params) {
  return DoWithBatch(params, &Backend::PagedAttention);
}

absl::Status GraphBackend::Sample(const SampleParams& params) {
  return Do([this, params] { return inner_->Sample(params); });
}

}  // namespace pagoda::kernels
