#include "kernels/cpu/cpu_backend.h"

#include <cstring>
#include <fstream>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/topology.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "cpu";
}

// Zeroed pages, aligned to and advised to be huge ones where large: weights and caches are
// streamed, and fewer translations matter.
absl::StatusOr<Buffer> AllocatePages(size_t size_bytes, absl::string_view purpose) {
  const size_t page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t alignment = size_bytes >= kHugePageBytes ? kHugePageBytes : page_bytes;
  const size_t mapped_bytes = (size_bytes + alignment - 1) / alignment * alignment;
  const size_t reserved_bytes = mapped_bytes + (alignment > page_bytes ? alignment : 0);
  void* const reserved = mmap(nullptr,
                              reserved_bytes,
                              PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                              -1,
                              0);
  if (reserved == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ",
                                                     size_bytes,
                                                     " bytes of memory for ",
                                                     purpose,
                                                     ": ",
                                                     std::strerror(errno)));
  }
  char* const start = static_cast<char*>(reserved);
  const size_t head = (alignment - reinterpret_cast<uintptr_t>(start) % alignment) % alignment;
  if (head > 0) munmap(start, head);
  const size_t tail = reserved_bytes - head - mapped_bytes;
  if (tail > 0) munmap(start + head + mapped_bytes, tail);
  if (alignment == kHugePageBytes) madvise(start + head, mapped_bytes, MADV_HUGEPAGE);
  return Buffer(
      start + head, size_bytes, [mapped_bytes](void* data) { munmap(data, mapped_bytes); });
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(cpu::Isa isa, int num_threads) : context_(cpu::KernelsFor(isa), num_threads) {}

  absl::string_view name() const override { return "cpu"; }
  absl::StatusOr<DeviceInfo> Info() override {
    const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    return DeviceInfo{
        .name = absl::StrCat(ProcessorName(),
                             " (",
                             cpu::IsaName(context_.kernels.isa),
                             ", ",
                             context_.pool.num_threads(),
                             context_.pool.num_threads() == 1 ? " thread)" : " threads)"),
        .total_memory_bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes,
        .free_memory_bytes = AvailableMemoryBytes(),
    };
  }
  absl::StatusOr<DType> ActivationDType(DType weight_dtype) const override {
    PAGODA_RETURN_IF_ERROR(RequireDType(
        "dtype of weights on the cpu backend", weight_dtype, {DType::kFloat32, DType::kBFloat16}));
    return DType::kFloat32;
  }

  absl::StatusOr<Buffer> Allocate(size_t size_bytes, absl::string_view purpose) override {
    if (size_bytes == 0) return Buffer();
    return AllocatePages(size_bytes, purpose);
  }
  absl::StatusOr<Buffer> AllocateHost(size_t size_bytes, absl::string_view purpose) override {
    return Allocate(size_bytes, purpose);
  }
  absl::Status CopyToDevice(void* device, const void* host, size_t size_bytes) override {
    return Copy(device, host, size_bytes);
  }
  absl::Status CopyToHost(void* host, const void* device, size_t size_bytes) override {
    return Copy(host, device, size_bytes);
  }

  absl::Status Synchronize() override { return absl::OkStatus(); }
  absl::StatusOr<uint64_t> RecordEvent() override { return ++last_event_; }
  absl::StatusOr<bool> EventPassed(uint64_t event) override {
    if (event == 0 || event > last_event_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "event is ", event, "; expected one that RecordEvent gave, 1 to ", last_event_));
    }
    return true;
  }

  WeightFormat PreferredFormat(DType, int64_t, int64_t) const override {
    return WeightFormat::kPanel16;
  }
  size_t LinearBytes(const LinearWeight& weight) const override {
    return static_cast<size_t>(cpu::WeightElements(weight)) * DTypeBytes(weight.dtype);
  }
  absl::Status PackLinear(const PackLinearParams& params) override {
    return cpu::PackLinear(context_, params);
  }
  absl::Status FillNormal(const FillNormalParams& params) override {
    return cpu::FillNormal(context_, params);
  }

  absl::Status ResolveTokens(const ResolveTokensParams& params) override {
    return cpu::ResolveTokens(params);
  }
  absl::Status Scatter(const ScatterParams& params) override { return cpu::Scatter(params); }
  absl::Status Embedding(const EmbeddingParams& params) override {
    return cpu::Embedding(context_, params);
  }
  absl::Status AddEmbedding(const EmbeddingParams& params) override {
    return cpu::AddEmbedding(context_, params);
  }
  absl::Status GatherRows(const GatherRowsParams& params) override {
    return cpu::GatherRows(context_, params);
  }
  absl::Status RmsNorm(const RmsNormParams& params) override {
    return cpu::RmsNorm(context_, params);
  }
  absl::Status LayerNorm(const LayerNormParams& params) override {
    return cpu::LayerNorm(context_, params);
  }
  absl::Status HeadNorm(const HeadNormParams& params) override {
    return cpu::HeadNorm(context_, params);
  }
  absl::Status Activate(const ActivateParams& params) override {
    return cpu::Activate(context_, params);
  }
  absl::Status AddScaled(const AddScaledParams& params) override {
    return cpu::AddScaled(context_, params);
  }
  absl::Status SiluMul(const SiluMulParams& params) override {
    return cpu::SiluMul(context_, params);
  }
  absl::Status Linear(const LinearParams& params) override { return cpu::Linear(context_, params); }
  absl::Status RouteExperts(const RouteExpertsParams& params) override {
    return cpu::RouteExperts(context_, params);
  }
  absl::Status GroupedLinear(const GroupedLinearParams& params) override {
    return cpu::GroupedLinear(context_, params);
  }
  absl::Status CombineExperts(const CombineExpertsParams& params) override {
    return cpu::CombineExperts(context_, params);
  }
  absl::Status CopyBlocks(const CopyBlocksParams& params) override {
    return cpu::CopyBlocks(context_, params);
  }
  absl::Status PrepareAttention(const AttentionBatch& batch) override { return Validate(batch); }
  absl::Status RopeKvWrite(const RopeKvWriteParams& params) override {
    return cpu::RopeKvWrite(context_, params);
  }
  absl::Status PagedAttention(const PagedAttentionParams& params) override {
    return cpu::PagedAttention(context_, params);
  }
  absl::Status AdjustLogits(const AdjustLogitsParams& params) override {
    return cpu::AdjustLogits(context_, params);
  }
  absl::Status Sample(const SampleParams& params) override { return cpu::Sample(context_, params); }

 private:
  // MemAvailable of /proc/meminfo: what can be had without swapping, page cache included.
  static uint64_t AvailableMemoryBytes() {
    std::ifstream file("/proc/meminfo");
    std::string key;
    uint64_t kib = 0;
    std::string unit;
    while (file >> key >> kib) {
      if (key == "MemAvailable:") return kib * 1024;
      std::getline(file, unit);
    }
    return static_cast<uint64_t>(sysconf(_SC_AVPHYS_PAGES)) *
           static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  }
  static absl::Status Copy(void* to, const void* from, size_t size_bytes) {
    if (size_bytes == 0) return absl::OkStatus();
    PAGODA_RETURN_IF_ERROR(RequirePointer("copy's destination", to));
    PAGODA_RETURN_IF_ERROR(RequirePointer("copy's source", from));
    std::memmove(to, from, size_bytes);
    return absl::OkStatus();
  }

  cpu::Context context_;
  uint64_t last_event_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> OpenCpuBackend(const BackendOptions& options) {
  PAGODA_ASSIGN_OR_RETURN(const cpu::Isa isa, cpu::ParseIsa(options.cpu_isa));
  // Beyond this a static division of one model's layers has nothing left to give.
  constexpr int kMaxThreads = 1024;
  PAGODA_RETURN_IF_ERROR(RequireBetween("cpu_threads", options.cpu_threads, 0, kMaxThreads));
  const int num_threads = options.cpu_threads > 0 ? options.cpu_threads : cpu::NumUsableCores();
  return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(isa, num_threads));
}

}  // namespace pagoda::kernels
