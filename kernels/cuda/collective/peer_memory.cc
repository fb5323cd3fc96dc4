#include "kernels/cuda/collective/peer_memory.h"

#include <cstdint>
#include <cstring>
#include <cuda_runtime_api.h>
#include <random>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/launch.h"

namespace pagoda::kernels::cuda {
namespace {

// Changes with the record and with what ranks make of each other's memory.
constexpr uint32_t kProtocol = 1;

// What a rank tells of its memory. Bytes: it crosses processes of one build.
struct MemoryRecord {
  uint32_t protocol = kProtocol;
  int32_t device_index = 0;  // in that process
  // Of the process: a pid may be another's in another namespace.
  uint64_t process[2] = {};
  cudaUUID_t device = {};
  uint64_t size_bytes = 0;
  uint64_t address = 0;
  cudaIpcMemHandle_t handle = {};
};
static_assert(std::is_trivially_copyable_v<MemoryRecord>);

struct ProcessId {
  uint64_t words[2];
};

const ProcessId& OwnProcess() {
  static const ProcessId id = [] {
    std::random_device random;
    const auto word = [&random] { return uint64_t{random()} << 32 | random(); };
    return ProcessId{{word(), word()}};
  }();
  return id;
}

absl::Status Check(cudaError_t error, absl::string_view call, absl::string_view detail) {
  if (error != cudaSuccess) (void)cudaGetLastError();
  return CudaStatus(error, call, detail);
}

bool IsSameDevice(const MemoryRecord& a, const MemoryRecord& b) {
  return std::memcmp(&a.device, &b.device, sizeof(a.device)) == 0;
}

// Lets this device use memory of another one of this process.
absl::Status EnableAccess(int peer_device, absl::string_view detail) {
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer_device, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
    return absl::OkStatus();
  }
  return Check(error, "cudaDeviceEnablePeerAccess", detail);
}

absl::Status CheckRecord(const MemoryRecord& record, const MemoryRecord& own, int rank) {
  if (record.protocol == own.protocol && record.size_bytes == own.size_bytes) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("rank ",
                                                    rank,
                                                    " shares ",
                                                    record.size_bytes,
                                                    " bytes by protocol ",
                                                    record.protocol,
                                                    ", expected ",
                                                    own.size_bytes,
                                                    " by protocol ",
                                                    own.protocol,
                                                    ": ranks must be of one build"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerMemory>> PeerMemory::Create(const DeviceContext& context,
                                                               const DeviceGroupOptions& options,
                                                               size_t size_bytes,
                                                               int fill_byte) {
  auto memory = std::unique_ptr<PeerMemory>(new PeerMemory());
  memory->own_rank_ = options.rank;
  memory->ranks_.resize(options.num_ranks);
  void*& own = memory->ranks_[options.rank].data;
  PAGODA_RETURN_IF_ERROR(Check(cudaMalloc(&own, size_bytes), "cudaMalloc", "memory of ranks"));
  PAGODA_RETURN_IF_ERROR(Check(cudaMemsetAsync(own, fill_byte, size_bytes, context.stream),
                               "cudaMemsetAsync",
                               "memory of ranks"));
  PAGODA_RETURN_IF_ERROR(
      Check(cudaStreamSynchronize(context.stream), "cudaStreamSynchronize", "memory of ranks"));
  PAGODA_RETURN_IF_ERROR(memory->Open(context, options, size_bytes));
  return memory;
}

absl::Status PeerMemory::Open(const DeviceContext& context,
                              const DeviceGroupOptions& options,
                              size_t size_bytes) {
  MemoryRecord own = {.device_index = context.device_index, .size_bytes = size_bytes};
  std::memcpy(own.process, OwnProcess().words, sizeof(own.process));
  own.address = reinterpret_cast<uint64_t>(ranks_[own_rank_].data);
  cudaDeviceProp properties = {};
  PAGODA_RETURN_IF_ERROR(Check(cudaGetDeviceProperties(&properties, context.device_index),
                               "cudaGetDeviceProperties",
                               context.label));
  own.device = properties.uuid;
  PAGODA_RETURN_IF_ERROR(Check(cudaIpcGetMemHandle(&own.handle, ranks_[own_rank_].data),
                               "cudaIpcGetMemHandle",
                               "memory of ranks"));

  std::vector<MemoryRecord> records(ranks_.size());
  PAGODA_RETURN_IF_ERROR(options.exchange(&own, records.data(), sizeof(own)));
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    const MemoryRecord& record = records[rank];
    if (rank == own_rank_) continue;
    PAGODA_RETURN_IF_ERROR(CheckRecord(record, own, rank));
    const std::string detail = absl::StrCat("the memory of rank ", rank);
    const bool same_device = IsSameDevice(record, own);
    if (same_device) ++ranks_on_device_;
    if (std::memcmp(record.process, own.process, sizeof(own.process)) == 0) {
      if (!same_device) PAGODA_RETURN_IF_ERROR(EnableAccess(record.device_index, detail));
      ranks_[rank].data = reinterpret_cast<void*>(record.address);
      continue;
    }
    PAGODA_RETURN_IF_ERROR(Check(
        cudaIpcOpenMemHandle(&ranks_[rank].data, record.handle, cudaIpcMemLazyEnablePeerAccess),
        "cudaIpcOpenMemHandle",
        detail));
    ranks_[rank].is_opened = true;
  }
  return absl::OkStatus();
}

PeerMemory::~PeerMemory() {
  for (const Rank& rank : ranks_) {
    if (rank.is_opened) cudaIpcCloseMemHandle(rank.data);
  }
  // A context that has failed frees nothing, and says so again.
  if (ranks_[own_rank_].data != nullptr) cudaFree(ranks_[own_rank_].data);
  (void)cudaGetLastError();
}

}  // namespace pagoda::kernels::cuda
