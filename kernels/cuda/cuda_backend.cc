#include "kernels/cuda/cuda_backend.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/collective/make_group.h"
#include "kernels/cuda/collective/nccl_group.h"
#include "kernels/cuda/copy_blocks.h"
#include "kernels/cuda/cuda_driver.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/layers.h"
#include "kernels/cuda/linear/plan_cache.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/small_copy.h"
#include "kernels/cuda/weights.h"

namespace pagoda::kernels::cuda {
namespace {

// What the backend itself takes, before any model; less is free where other processes hold the
// device's memory.
constexpr size_t kLeastFreeBytes = size_t{256} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CudaBackend::Create(const BackendOptions& options) {
  auto backend = std::unique_ptr<CudaBackend>(new CudaBackend());
  PAGODA_RETURN_IF_ERROR(backend->Open(options));
  return backend;
}

absl::Status CudaBackend::Open(const BackendOptions& options) {
  const int device = options.device_index;
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  CudaDriver driver;
  PAGODA_ASSIGN_OR_RETURN(const DeviceFacts facts,
                          ProbeDevice(driver,
                                      {.device_index = device,
                                       .needed_cuda_version = CUDART_VERSION,
                                       .visible_devices = visible == nullptr ? "" : visible,
                                       .least_free_bytes = kLeastFreeBytes}));
  context_.device_index = device;
  context_.name = facts.name;
  context_.label = absl::StrCat("device ", device, " (", facts.name, ")");
  context_.num_sms = facts.num_sms;
  context_.max_block_shared_bytes = facts.max_block_shared_bytes;
  context_.l2_bytes = facts.l2_bytes;
  PAGODA_RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(&context_.stream, cudaStreamNonBlocking),
                 "cudaStreamCreate",
                 "opening the device"));
  PAGODA_ASSIGN_OR_RETURN(linear_, LinearRunner::Create(context_, PlanCache::DefaultFolder()));
  // Measuring takes tens of milliseconds: when there is nothing else to do (Tune).
  linear_->set_measure(false);
  PAGODA_ASSIGN_OR_RETURN(sampler_, Sampler::Create(context_));
  attention_ = std::make_unique<AttentionRunner>(context_);
  uploader_ = std::make_unique<WeightUploader>(context_);
  PAGODA_ASSIGN_OR_RETURN(progress_, StreamProgress::Create(context_));
  if (!options.step_clock_path.empty()) {
    PAGODA_ASSIGN_OR_RETURN(step_clock_, StepClock::Create(context_, options.step_clock_path));
  }
  return absl::OkStatus();
}

CudaBackend::~CudaBackend() {
  if (context_.stream != nullptr) (void)cudaStreamSynchronize(context_.stream);
  for (const Graph& graph : graphs_) {
    if (graph.exec != nullptr) cudaGraphExecDestroy(graph.exec);
  }
  step_clock_.reset();
  progress_.reset();
  uploader_.reset();
  attention_.reset();
  sampler_.reset();
  linear_.reset();
  if (context_.stream != nullptr) cudaStreamDestroy(context_.stream);
}

absl::Status CudaBackend::Finish(absl::string_view op, const absl::Status& status) const {
  return AtPlace(status, op, context_.label);
}

absl::Status CudaBackend::FinishCall(absl::string_view op,
                                     absl::string_view call,
                                     cudaError_t error) const {
  if (error != cudaSuccess) (void)cudaGetLastError();
  return Finish(op, CudaStatus(error, call, op));
}

absl::StatusOr<DeviceInfo> CudaBackend::Info() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  PAGODA_RETURN_IF_ERROR(
      FinishCall("info", "cudaMemGetInfo", cudaMemGetInfo(&free_bytes, &total_bytes)));
  char bus_id[32] = {};
  PAGODA_RETURN_IF_ERROR(
      FinishCall("info",
                 "cudaDeviceGetPCIBusId",
                 cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), context_.device_index)));
  return DeviceInfo{
      .name = context_.name,
      .total_memory_bytes = total_bytes,
      .free_memory_bytes = free_bytes,
      .pci_bus_id = bus_id,
      .cuda_version = absl::StrCat(CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10),
      .nccl_version = NcclBuildVersion()};
}

absl::StatusOr<DType> CudaBackend::ActivationDType(DType weight_dtype) const {
  if (weight_dtype == DType::kBFloat16 || weight_dtype == DType::kFloat16) return weight_dtype;
  return UnsupportedError("backend",
                          absl::StrCat("weights of ",
                                       DTypeName(weight_dtype),
                                       "; supported are bfloat16 and float16 (--dtype)"));
}

// ---- Memory.

absl::StatusOr<Buffer> CudaBackend::Allocate(size_t size_bytes, absl::string_view purpose) {
  if (context_.recording) return NotWhileRecordingError("Allocate");
  if (size_bytes == 0) return Buffer();
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, size_bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    PAGODA_ASSIGN_OR_RETURN(const DeviceInfo info, Info());
    return DeviceOutOfMemoryError(
        purpose, size_bytes, info.free_memory_bytes, info.total_memory_bytes);
  }
  PAGODA_RETURN_IF_ERROR(FinishCall(purpose, "cudaMalloc", error));
  Buffer buffer(data, size_bytes, [](void* memory) { cudaFree(memory); });
  PAGODA_RETURN_IF_ERROR(FinishCall(
      purpose, "cudaMemsetAsync", cudaMemsetAsync(data, 0, size_bytes, context_.stream)));
  return buffer;
}

absl::StatusOr<Buffer> CudaBackend::AllocateHost(size_t size_bytes, absl::string_view purpose) {
  if (context_.recording) return NotWhileRecordingError("AllocateHost");
  if (size_bytes == 0) return Buffer();
  void* data = nullptr;
  const cudaError_t error = cudaHostAlloc(&data, size_bytes, cudaHostAllocDefault);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return absl::ResourceExhaustedError(
        absl::StrCat(size_bytes,
                     " bytes of pinned host memory for ",
                     purpose,
                     " could not be had: free host memory or raise the limit of locked memory"));
  }
  PAGODA_RETURN_IF_ERROR(FinishCall(purpose, "cudaHostAlloc", error));
  std::memset(data, 0, size_bytes);
  (*pinned_)[static_cast<const char*>(data)] = size_bytes;
  return Buffer(data, size_bytes, [pinned = pinned_](void* memory) {
    pinned->erase(static_cast<const char*>(memory));
    cudaFreeHost(memory);
  });
}

bool CudaBackend::IsPinned(const void* host, size_t size_bytes) const {
  const char* begin = static_cast<const char*>(host);
  auto it = pinned_->upper_bound(begin);
  if (it == pinned_->begin()) return false;
  --it;
  return begin + size_bytes <= it->first + it->second;
}

absl::Status CudaBackend::CopyToDevice(void* device, const void* host, size_t size_bytes) {
  if (size_bytes == 0) return absl::OkStatus();
  if (IsSmallCopy(device, host, size_bytes) && IsPinned(host, size_bytes)) {
    return Finish("copy_to_device", SmallCopyToDevice(context_, device, host, size_bytes));
  }
  return FinishCall(
      "copy_to_device",
      "cudaMemcpyAsync",
      cudaMemcpyAsync(device, host, size_bytes, cudaMemcpyHostToDevice, context_.stream));
}

absl::Status CudaBackend::CopyToHost(void* host, const void* device, size_t size_bytes) {
  if (size_bytes == 0) return absl::OkStatus();
  if (IsSmallCopy(host, device, size_bytes) && IsPinned(host, size_bytes)) {
    return Finish("copy_to_host", SmallCopyToHost(context_, host, device, size_bytes));
  }
  return FinishCall(
      "copy_to_host",
      "cudaMemcpyAsync",
      cudaMemcpyAsync(host, device, size_bytes, cudaMemcpyDeviceToHost, context_.stream));
}

// ---- Order.

absl::Status CudaBackend::Synchronize() {
  if (context_.recording) return NotWhileRecordingError("Synchronize");
  return FinishCall("synchronize", "cudaStreamSynchronize", cudaStreamSynchronize(context_.stream));
}

absl::StatusOr<uint64_t> CudaBackend::RecordEvent() {
  if (context_.recording) return NotWhileRecordingError("RecordEvent");
  absl::StatusOr<uint64_t> mark = progress_->Mark();
  if (!mark.ok()) return Finish("record_event", mark.status());
  return mark;
}

absl::StatusOr<bool> CudaBackend::EventPassed(uint64_t event) {
  if (event == 0 || event > progress_->last_mark()) {
    return absl::InvalidArgumentError(absl::StrCat("event ", event, " was never recorded"));
  }
  // An op that failed on the device is reported here, after the fact.
  absl::StatusOr<bool> reached = progress_->Reached(event);
  if (!reached.ok()) return Finish("event_passed", reached.status());
  return reached;
}

// ---- Graphs.

absl::Status CudaBackend::BeginGraph() {
  if (context_.recording) return NotWhileRecordingError("BeginGraph");
  // Relaxed: a kernel that is loaded at its first launch may allocate.
  PAGODA_RETURN_IF_ERROR(
      FinishCall("begin_graph",
                 "cudaStreamBeginCapture",
                 cudaStreamBeginCapture(context_.stream, cudaStreamCaptureModeRelaxed)));
  context_.recording = true;
  recorded_attention_ = false;
  return absl::OkStatus();
}

absl::StatusOr<GraphId> CudaBackend::EndGraph() {
  if (!context_.recording) {
    return absl::FailedPreconditionError("EndGraph without BeginGraph");
  }
  context_.recording = false;
  cudaGraph_t graph = nullptr;
  PAGODA_RETURN_IF_ERROR(FinishCall(
      "end_graph", "cudaStreamEndCapture", cudaStreamEndCapture(context_.stream, &graph)));
  Graph recorded = {.launches = attention_->launches(), .has_attention = recorded_attention_};
  absl::Status status = FinishCall(
      "end_graph", "cudaGraphInstantiate", cudaGraphInstantiate(&recorded.exec, graph, 0));
  cudaGraphDestroy(graph);
  PAGODA_RETURN_IF_ERROR(status);
  status =
      FinishCall("end_graph", "cudaGraphUpload", cudaGraphUpload(recorded.exec, context_.stream));
  if (!status.ok()) {
    cudaGraphExecDestroy(recorded.exec);
    return status;
  }
  graphs_.push_back(recorded);
  return static_cast<GraphId>(graphs_.size() - 1);
}

absl::Status CudaBackend::LaunchGraph(GraphId id) {
  if (context_.recording) return NotWhileRecordingError("LaunchGraph");
  if (id < 0 || static_cast<size_t>(id) >= graphs_.size() || graphs_[id].exec == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("graph ", id, " does not exist"));
  }
  const Graph& graph = graphs_[id];
  const AttentionRunner::Launches wanted = attention_->launches();
  if (graph.has_attention &&
      ((wanted.decode && !graph.launches.decode) || (wanted.prefill && !graph.launches.prefill))) {
    return absl::FailedPreconditionError(
        absl::StrCat("graph ",
                     id,
                     " was recorded for a batch without ",
                     wanted.prefill && !graph.launches.prefill ? "prefill" : "decode",
                     " sequences, and the prepared batch has some"));
  }
  context_.weights_written = false;  // a graph waits for all before it
  return FinishCall(
      "launch_graph", "cudaGraphLaunch", cudaGraphLaunch(graph.exec, context_.stream));
}

absl::Status CudaBackend::DropGraph(GraphId id) {
  if (id < 0 || static_cast<size_t>(id) >= graphs_.size() || graphs_[id].exec == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("graph ", id, " does not exist"));
  }
  return FinishCall("drop_graph",
                    "cudaGraphExecDestroy",
                    cudaGraphExecDestroy(std::exchange(graphs_[id].exec, nullptr)));
}

// ---- Groups.

absl::StatusOr<std::unique_ptr<DeviceGroup>> CudaBackend::MakeGroup(
    const DeviceGroupOptions& options) {
  if (context_.recording) return NotWhileRecordingError("MakeGroup");
  absl::StatusOr<std::unique_ptr<DeviceGroup>> group = cuda::MakeGroup(context_, options);
  if (!group.ok()) return Finish("make_group", group.status());
  return group;
}

absl::StatusOr<bool> CudaBackend::Tune() {
  if (context_.recording) return NotWhileRecordingError("Tune");
  return linear_->MeasureWanted();
}

// ---- Weights.

WeightFormat CudaBackend::PreferredFormat(DType, int64_t, int64_t) const {
  return WeightFormat::kRowMajor;
}

size_t CudaBackend::LinearBytes(const LinearWeight& weight) const {
  return static_cast<size_t>(weight.n) * static_cast<size_t>(weight.k) * DTypeBytes(weight.dtype);
}

absl::Status CudaBackend::PackLinear(const PackLinearParams& p) {
  PAGODA_RETURN_IF_ERROR(Validate(p));
  if (context_.recording) return NotWhileRecordingError("PackLinear");
  if (p.weight.format != WeightFormat::kRowMajor) {
    return UnsupportedError("pack_linear", "a weight that is not row-major");
  }
  const int64_t count = p.rows * p.weight.k;
  const size_t row_bytes = static_cast<size_t>(p.weight.k) * DTypeBytes(p.weight.dtype);
  char* const to = static_cast<char*>(const_cast<void*>(p.weight.data)) +
                   static_cast<size_t>(p.row_offset) * row_bytes;
  const size_t source_bytes = static_cast<size_t>(count) * DTypeBytes(p.source_dtype);
  return Finish("pack_linear",
                uploader_->Run({.source = p.source,
                                .source_dtype = p.source_dtype,
                                .source_is_pinned = IsPinned(p.source, source_bytes),
                                .to = to,
                                .to_dtype = p.weight.dtype,
                                .count = count}));
}

absl::Status CudaBackend::FillNormal(const FillNormalParams& p) {
  PAGODA_RETURN_IF_ERROR(Validate(p));
  if (context_.recording) return NotWhileRecordingError("FillNormal");
  if (p.weight.format != WeightFormat::kRowMajor) {
    return UnsupportedError("fill_normal", "a weight that is not row-major");
  }
  char* const to = static_cast<char*>(const_cast<void*>(p.weight.data)) +
                   static_cast<size_t>(p.row_offset * p.weight.k) * DTypeBytes(p.weight.dtype);
  const bool has_gaps = p.stride() != p.weight.k;
  return Finish("fill_normal",
                cuda::FillNormal(context_,
                                 {.data = to,
                                  .dtype = p.weight.dtype,
                                  .count = p.num_rows() * p.weight.k,
                                  .stddev = p.stddev,
                                  .seed = p.seed,
                                  .first_index = static_cast<uint64_t>(p.element_offset),
                                  .width = has_gaps ? p.weight.k : 0,
                                  .row_stride = has_gaps ? p.stride() : 0}));
}

// ---- Ops.

absl::Status CudaBackend::ResolveTokens(const ResolveTokensParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  // The first op of a step.
  if (step_clock_ != nullptr) PAGODA_RETURN_IF_ERROR(step_clock_->Add(StepClock::Mark::kBegin));
  return Finish("resolve_tokens", cuda::ResolveTokens(context_, params));
}

absl::Status CudaBackend::Scatter(const ScatterParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  return Finish("scatter", cuda::Scatter(context_, params));
}

absl::Status CudaBackend::Embedding(const EmbeddingParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  return Finish("embedding", cuda::Embedding(context_, params));
}

absl::Status CudaBackend::GatherRows(const GatherRowsParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  return Finish("gather_rows", cuda::GatherRows(context_, params));
}

absl::Status CudaBackend::RmsNorm(const RmsNormParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  return Finish("rms_norm", cuda::RmsNorm(context_, params));
}

absl::Status CudaBackend::SiluMul(const SiluMulParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  return Finish("silu_mul", cuda::SiluMul(context_, params));
}

absl::Status CudaBackend::Linear(const LinearParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  if (params.m == 0) return absl::OkStatus();
  PAGODA_ASSIGN_OR_RETURN(const GemmArgs args, ToGemmArgs(params));
  return Finish("linear",
                params.is_fixed ? linear_->RunFixed(params.x_dtype, args)
                                : linear_->Run(params.x_dtype, args));
}

bool CudaBackend::SupportsFusedLinear(const FusedLinearParams& params) {
  if (params.linear.m == 0 || !Validate(params).ok()) return false;
  const absl::StatusOr<GemmArgs> args = ToGemmArgs(params);
  return args.ok() && linear_->SupportsFused(params.linear.x_dtype, *args);
}

absl::Status CudaBackend::FusedLinear(const FusedLinearParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  if (params.linear.m == 0) return absl::OkStatus();
  PAGODA_ASSIGN_OR_RETURN(const GemmArgs args, ToGemmArgs(params));
  return Finish("fused_linear", linear_->RunFused(params.linear.x_dtype, args));
}

absl::Status CudaBackend::CopyBlocks(const CopyBlocksParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  return Finish("copy_blocks", cuda::CopyBlocks(context_, params));
}

absl::Status CudaBackend::PrepareAttention(const AttentionBatch& batch) {
  PAGODA_RETURN_IF_ERROR(Validate(batch));
  if (context_.recording) return NotWhileRecordingError("PrepareAttention");
  return Finish("prepare_attention", attention_->Prepare(batch));
}

uint32_t CudaBackend::AttentionVariant() const {
  const AttentionRunner::Launches launches = attention_->launches();
  return (launches.decode ? 1u : 0u) | (launches.prefill ? 2u : 0u);
}

absl::Status CudaBackend::RopeKvWrite(const RopeKvWriteParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  const bool programmatic = !std::exchange(context_.weights_written, false);
  return Finish("rope_kv_write", LaunchRopeKvWrite(params, programmatic, context_.stream));
}

absl::Status CudaBackend::PagedAttention(const PagedAttentionParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  recorded_attention_ = true;
  return Finish("paged_attention", attention_->Run(params));
}

// Ops that not every architecture has.

absl::Status CudaBackend::AddEmbedding(const EmbeddingParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  return Finish("add_embedding", cuda::AddEmbedding(context_, params));
}

absl::Status CudaBackend::LayerNorm(const LayerNormParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  return Finish("layer_norm", cuda::LayerNorm(context_, params));
}

absl::Status CudaBackend::HeadNorm(const HeadNormParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  return Finish("head_norm", cuda::HeadNorm(context_, params));
}

absl::Status CudaBackend::Activate(const ActivateParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  return Finish("activate", cuda::Activate(context_, params));
}

absl::Status CudaBackend::AddScaled(const AddScaledParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  return Finish("add_scaled", cuda::AddScaled(context_, params));
}

absl::Status CudaBackend::AdjustLogits(const AdjustLogitsParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  return Finish("adjust_logits", cuda::AdjustLogits(context_, params));
}

absl::Status CudaBackend::RouteExperts(const RouteExpertsParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  return Finish("route_experts", cuda::RouteExperts(context_, params));
}

absl::Status CudaBackend::GroupedLinear(const GroupedLinearParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  return Finish("grouped_linear", cuda::GroupedLinear(context_, params));
}

absl::Status CudaBackend::CombineExperts(const CombineExpertsParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  return Finish("combine_experts", cuda::CombineExperts(context_, params));
}

absl::Status CudaBackend::Sample(const SampleParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  PAGODA_RETURN_IF_ERROR(Finish("sample", sampler_->Run(params)));
  // The last op of a step.
  return step_clock_ == nullptr ? absl::OkStatus() : step_clock_->Add(StepClock::Mark::kEnd);
}

}  // namespace pagoda::kernels::cuda
