#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/base/dtype.h"
#include "kernels/device_group.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/copy_blocks.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/fused_linear.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/sample.h"

namespace pagoda::kernels {

// Memory of a backend, freed with the object. Must not outlive its backend.
class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, size_t size_bytes, std::function<void(void*)> free)
      : data_(data), size_bytes_(size_bytes), free_(std::move(free)) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(free_, other.free_);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr && free_) free_(data_);
  }

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t size_bytes() const { return size_bytes_; }

 private:
  void* data_ = nullptr;
  size_t size_bytes_ = 0;
  std::function<void(void*)> free_;
};

struct DeviceInfo {
  std::string name;
  uint64_t total_memory_bytes = 0;
  uint64_t free_memory_bytes = 0;
  std::string pci_bus_id;  // of a GPU, the same in every process
  // That the backend was built with; empty: without.
  std::string cuda_version;
  std::string nccl_version;
};

struct BackendOptions {
  int device_index = 0;
  int cpu_threads = 0;           // 0: one per physical core
  std::string cpu_isa = "auto";  // "auto", "scalar", "avx2", "avx512", "avx512_bf16"
  std::string backend_dir;       // where modules are looked for before the installed place
  // cuda: gets the device's time at the begin and end of steps; empty: none
  std::string step_clock_path;
};

// A recorded sequence of ops.
using GraphId = int32_t;

// One device: its memory, its one queue of work, and one method per op. Ops run in the order of the
// calls; on a device they may still be running when a call returns. Every op validates its params
// and refuses what it cannot do with a status naming it. Thread-compatible: one thread at a time.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual absl::string_view name() const = 0;
  virtual absl::StatusOr<DeviceInfo> Info() = 0;
  // Type of activations when weights are of `weight_dtype`: what x_dtype, dtype fields of ops must
  // be.
  virtual absl::StatusOr<DType> ActivationDType(DType weight_dtype) const = 0;

  // ---- Memory. Device memory is 64-byte aligned (256 on cuda) and holds zeros. On cpu both kinds
  // are the same.
  virtual absl::StatusOr<Buffer> Allocate(size_t size_bytes, absl::string_view purpose) = 0;
  // Memory of the host that copies can read and write while ops run.
  virtual absl::StatusOr<Buffer> AllocateHost(size_t size_bytes, absl::string_view purpose) = 0;
  // Copies are ordered with ops; the host side must stay untouched until Synchronize or a passed
  // event.
  virtual absl::Status CopyToDevice(void* device, const void* host, size_t size_bytes) = 0;
  virtual absl::Status CopyToHost(void* host, const void* device, size_t size_bytes) = 0;

  // ---- Order. An event passes when everything before its Record has run.
  virtual absl::Status Synchronize() = 0;
  virtual absl::StatusOr<uint64_t> RecordEvent() = 0;
  virtual absl::StatusOr<bool> EventPassed(uint64_t event) = 0;

  // ---- Graphs: ops between Begin and End are recorded, not run. UNIMPLEMENTED where
  // supports_graphs is false.
  virtual bool supports_graphs() const { return false; }
  virtual absl::Status BeginGraph() {
    return absl::UnimplementedError("no graphs on this backend");
  }
  virtual absl::StatusOr<GraphId> EndGraph() {
    return absl::UnimplementedError("no graphs on this backend");
  }
  virtual absl::Status LaunchGraph(GraphId) {
    return absl::UnimplementedError("no graphs on this backend");
  }
  virtual absl::Status DropGraph(GraphId) {
    return absl::UnimplementedError("no graphs on this backend");
  }

  // ---- Several devices that compute one model. False: memory is the host's, and ops have run when
  // they return, so that ranks need nothing but the host to meet.
  virtual bool supports_groups() const { return false; }
  // Every rank calls it. The group must not outlive the backend, nor graphs with its ops the group.
  virtual absl::StatusOr<std::unique_ptr<DeviceGroup>> MakeGroup(const DeviceGroupOptions&) {
    return absl::UnimplementedError("no groups of devices on this backend");
  }

  // ---- Choices between kernels that only measuring settles. Ops take what was measured before, on
  // this start or an earlier one, or a guess; Tune measures one guess that ops have had to make. It
  // takes up to a few tenths of a second; no op may be under way. True if a choice may have
  // changed: graphs recorded before keep the old one. False: none is left.
  virtual absl::StatusOr<bool> Tune() { return false; }

  // ---- Weights. The format this backend wants for a linear weight, and the bytes it takes.
  virtual WeightFormat PreferredFormat(DType dtype, int64_t n, int64_t k) const = 0;
  virtual size_t LinearBytes(const LinearWeight& weight) const = 0;
  virtual absl::Status PackLinear(const PackLinearParams& params) = 0;
  // Fills a whole weight with N(0, stddev): element (i, j) is a function of (seed, i * k + j)
  // alone, whatever the format, device and rank.
  virtual absl::Status FillNormal(const FillNormalParams& params) = 0;

  // ---- Ops.
  virtual absl::Status ResolveTokens(const ResolveTokensParams& params) = 0;
  virtual absl::Status Scatter(const ScatterParams& params) = 0;
  virtual absl::Status Embedding(const EmbeddingParams& params) = 0;
  virtual absl::Status GatherRows(const GatherRowsParams& params) = 0;
  virtual absl::Status RmsNorm(const RmsNormParams& params) = 0;
  virtual absl::Status SiluMul(const SiluMulParams& params) = 0;
  virtual absl::Status Linear(const LinearParams& params) = 0;
  // Whether FusedLinear takes these params and is worth it; the separate ops always work. The
  // answer for a shape may change until it was run once outside a graph, since plans are measured
  // there.
  virtual bool SupportsFusedLinear(const FusedLinearParams&) { return false; }
  virtual absl::Status FusedLinear(const FusedLinearParams&) {
    return absl::UnimplementedError("no fused linear on this backend");
  }
  // Of the KV pool, before the step that reads or writes the copies.
  virtual absl::Status CopyBlocks(const CopyBlocksParams& params) = 0;
  // Once a step, before its layers and outside graphs: plans the work of PagedAttention for
  // `batch`.
  virtual absl::Status PrepareAttention(const AttentionBatch& batch) = 0;
  // Which kernels the prepared batch needs: a graph with PagedAttention replays only for batches of
  // the variant that it was recorded for.
  virtual uint32_t AttentionVariant() const { return 0; }
  virtual absl::Status RopeKvWrite(const RopeKvWriteParams& params) = 0;
  virtual absl::Status PagedAttention(const PagedAttentionParams& params) = 0;
  virtual absl::Status Sample(const SampleParams& params) = 0;

  // ---- Ops of some architectures; UNIMPLEMENTED where a backend lacks one.
  // y[i, :] += table[tokens[i], :] * scale: learned positions.
  virtual absl::Status AddEmbedding(const EmbeddingParams&) { return NoSuchOp("AddEmbedding"); }
  virtual absl::Status LayerNorm(const LayerNormParams&) { return NoSuchOp("LayerNorm"); }
  virtual absl::Status HeadNorm(const HeadNormParams&) { return NoSuchOp("HeadNorm"); }
  virtual absl::Status Activate(const ActivateParams&) { return NoSuchOp("Activate"); }
  virtual absl::Status AddScaled(const AddScaledParams&) { return NoSuchOp("AddScaled"); }
  virtual absl::Status RouteExperts(const RouteExpertsParams&) { return NoSuchOp("RouteExperts"); }
  virtual absl::Status GroupedLinear(const GroupedLinearParams&) {
    return NoSuchOp("GroupedLinear");
  }
  virtual absl::Status CombineExperts(const CombineExpertsParams&) {
    return NoSuchOp("CombineExperts");
  }
  virtual absl::Status AdjustLogits(const AdjustLogitsParams&) { return NoSuchOp("AdjustLogits"); }

 private:
  static absl::Status NoSuchOp(const char* op) {
    return absl::UnimplementedError(std::string(op) + " is not an op of this backend");
  }
};

// Opens "cpu" or "cuda"; "cuda" is the module pagoda_cuda.so. A missing module, driver or device is
// an error that says why and what to do, never another backend.
absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(absl::string_view name,
                                                     const BackendOptions& options);

}  // namespace pagoda::kernels
