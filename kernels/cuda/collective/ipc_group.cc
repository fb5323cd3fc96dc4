#include "kernels/cuda/collective/ipc_group.h"

#include <algorithm>
#include <atomic>
#include <cuda_runtime_api.h>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/collective/gather.h"
#include "kernels/cuda/collective/group_error.h"
#include "kernels/cuda/collective/ipc_memory.h"
#include "kernels/cuda/collective/peer_memory.h"
#include "kernels/cuda/collective/reduce.h"
#include "kernels/cuda/launch.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr int kEmptyByte = 0xff;
// Of the sum that shows that ranks reach each other: more than one tile.
constexpr int64_t kProofCount = 4099;
static_assert(kProofCount * sizeof(float) <= kProofBytes);

bool IsAligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % kVectorBytes == 0; }

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

class IpcGroup final : public DeviceGroup {
 public:
  IpcGroup(const DeviceContext& context, Shots shots) : context_(context), shots_(shots) {}
  ~IpcGroup() override {
    if (host_ != nullptr) cudaFreeHost(host_);
  }
  absl::Status Open(const DeviceGroupOptions& options);

  int rank() const override { return view_.rank; }
  int num_ranks() const override { return view_.num_ranks; }
  absl::string_view transport() const override { return "ipc"; }
  int ranks_on_device() const override { return memory_->ranks_on_device(); }

  absl::Status AllReduceSum(const AllReduceParams& params) override;
  bool SupportsAllReduceNorm(const AllReduceNormParams& params) const override;
  absl::Status AllReduceNorm(const AllReduceNormParams& params) override;
  absl::Status AllGather(const AllGatherParams& params) override;
  absl::Status Broadcast(const BroadcastParams& params) override;
  absl::Status Poll() override;
  void Abort() override;

 private:
  absl::Status ProveReach(const DeviceGroupOptions& options);
  Shots ShotsOf(int64_t num_bytes) const {
    return shots_ == Shots::kAuto ? ChooseShots(view_.num_ranks, num_bytes) : shots_;
  }
  // What the kernel of a reduction is made for.
  int KernelRanks(bool is_whole) const { return is_whole ? num_ranks() : kMaxRanks; }
  // Lays out slots, and launches.
  absl::Status Reduce(
      Shots shots, DType dtype, const ReduceGrid& grid, int64_t num_vectors, ReduceArgs args);
  bool programmatic() const {
    return memory_->ranks_on_device() == 1 && !std::exchange(context_.weights_written, false);
  }

  // ---- Constant after Open.
  const DeviceContext& context_;
  const Shots shots_;
  std::unique_ptr<PeerMemory> memory_;
  PeerView view_;
  size_t proof_offset_ = 0;      // of memory that no op uses
  HostControl* host_ = nullptr;  // pinned; its fields synchronise themselves
};

absl::Status IpcGroup::Open(const DeviceGroupOptions& options) {
  const RegionLayout layout = LayOutRegion(options.num_ranks);
  const IpcMemory plan = LayOutIpcMemory(options.num_ranks);
  PAGODA_RETURN_IF_ERROR(CudaStatus(
      cudaHostAlloc(reinterpret_cast<void**>(&host_), sizeof(HostControl), cudaHostAllocPortable),
      "cudaHostAlloc",
      "the control block of ranks"));
  *host_ = {};
  proof_offset_ = plan.proof;
  PAGODA_ASSIGN_OR_RETURN(memory_,
                          PeerMemory::Create(context_, options, plan.total_bytes, kEmptyByte));
  view_.rank = options.rank;
  view_.num_ranks = options.num_ranks;
  view_.timeout_ns = static_cast<uint64_t>(options.timeout_ns);
  view_.host = host_;
  view_.reduce_parity_bytes = layout.reduce_parity_bytes;
  view_.gather_parity_bytes = layout.gather_parity_bytes;
  view_.gather_piece_bytes = layout.gather_piece_bytes;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    char* const memory = memory_->of(rank);
    view_.controls[rank] = reinterpret_cast<PeerControl*>(memory);
    view_.reduce_slots[rank] = memory + plan.first_slot;
    view_.gather_slots[rank] = view_.reduce_slots[rank] + 2 * layout.reduce_parity_bytes;
  }
  PAGODA_RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(memory_->of(options.rank), 0, plan.first_slot, context_.stream),
                 "cudaMemsetAsync",
                 "the control block of ranks"));
  return ProveReach(options);
}

absl::Status IpcGroup::ProveReach(const DeviceGroupOptions& options) {
  const auto check = [](cudaError_t error, absl::string_view call) {
    return CudaStatus(error, call, "the first sum over ranks");
  };
  PAGODA_RETURN_IF_ERROR(check(cudaStreamSynchronize(context_.stream), "cudaStreamSynchronize"));
  // Nobody sends before all have cleared their control blocks. From here on nothing is allocated:
  // where ranks are streams of one process, that may wait for a kernel that waits for this rank.
  char ready = 1;
  std::vector<char> all_ready(options.num_ranks);
  PAGODA_RETURN_IF_ERROR(options.exchange(&ready, all_ready.data(), 1));

  std::vector<float> values(kProofCount);
  for (int64_t i = 0; i < kProofCount; ++i) values[i] = static_cast<float>((rank() + 1) * i);
  float* const device = reinterpret_cast<float*>(memory_->of(rank()) + proof_offset_);
  constexpr size_t kBytes = kProofCount * sizeof(float);
  PAGODA_RETURN_IF_ERROR(
      check(cudaMemcpyAsync(device, values.data(), kBytes, cudaMemcpyHostToDevice, context_.stream),
            "cudaMemcpyAsync"));
  PAGODA_RETURN_IF_ERROR(
      AllReduceSum({.x = device, .y = device, .count = kProofCount, .dtype = DType::kFloat32}));
  PAGODA_RETURN_IF_ERROR(
      check(cudaMemcpyAsync(values.data(), device, kBytes, cudaMemcpyDeviceToHost, context_.stream),
            "cudaMemcpyAsync"));
  PAGODA_RETURN_IF_ERROR(check(cudaStreamSynchronize(context_.stream), "cudaStreamSynchronize"));
  PAGODA_RETURN_IF_ERROR(Poll());
  const int64_t factor = int64_t{num_ranks()} * (num_ranks() + 1) / 2;
  for (int64_t i = 0; i < kProofCount; ++i) {
    const float expected = static_cast<float>(factor * i);
    if (values[i] != expected) return NoReachError(rank(), i, values[i], expected);
  }
  return absl::OkStatus();
}

absl::Status IpcGroup::Reduce(
    Shots shots, DType dtype, const ReduceGrid& grid, int64_t num_vectors, ReduceArgs args) {
  const ReduceLayout slots = LayOutReduce(shots, num_ranks(), num_vectors);
  args.view = view_;
  args.num_vectors = static_cast<int>(num_vectors);
  args.vectors_per_sender = static_cast<int>(slots.vectors_per_sender);
  args.first_sum = static_cast<int>(slots.first_sum);
  return LaunchReduce(
      context_,
      {.shots = shots, .grid = grid, .dtype = dtype, .programmatic = programmatic()},
      args);
}

absl::Status IpcGroup::AllReduceSum(const AllReduceParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  PAGODA_RETURN_IF_ERROR(Poll());
  const int64_t element_bytes = static_cast<int64_t>(DTypeBytes(params.dtype));
  const int64_t per_vector = kVectorBytes / element_bytes;
  const Shots shots = ShotsOf(params.count * element_bytes);
  const int64_t most = MaxReduceVectors(shots, num_ranks()) * per_vector;
  for (int64_t begin = 0; begin < params.count; begin += most) {
    const int64_t count = std::min(most, params.count - begin);
    const int64_t num_vectors = CeilDiv(count, per_vector);
    const void* const x = static_cast<const char*>(params.x) + begin * element_bytes;
    void* const y = static_cast<char*>(params.y) + begin * element_bytes;
    const bool is_whole = count % per_vector == 0 && IsAligned16(x) && IsAligned16(y);
    const ReduceGrid grid = PlanReduce(
        KernelRanks(is_whole), num_vectors, context_.num_sms, memory_->ranks_on_device());
    PAGODA_RETURN_IF_ERROR(
        Reduce(shots,
               params.dtype,
               grid,
               num_vectors,
               {.x = x,
                .sum = y,
                .count = count,
                .tile_count = grid.num_threads * per_vector,
                .num_tiles = static_cast<int>(CeilDiv(num_vectors, grid.num_threads)),
                .tile_vectors = grid.num_threads,
                .is_whole = is_whole}));
  }
  return absl::OkStatus();
}

bool IpcGroup::SupportsAllReduceNorm(const AllReduceNormParams& params) const {
  const int64_t row_bytes = params.width * static_cast<int64_t>(DTypeBytes(params.dtype));
  return Validate(params).ok() && row_bytes <= kMaxRowVectors * kVectorBytes;
}

absl::Status IpcGroup::AllReduceNorm(const AllReduceNormParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  if (!SupportsAllReduceNorm(params)) {
    return RowTooLongError(params.width, params.dtype, kMaxRowVectors * kVectorBytes);
  }
  PAGODA_RETURN_IF_ERROR(Poll());
  const int64_t element_bytes = static_cast<int64_t>(DTypeBytes(params.dtype));
  const int64_t row_bytes = params.width * element_bytes;
  const int64_t row_vectors = CeilDiv(row_bytes, kVectorBytes);
  const Shots shots = ShotsOf(params.rows * row_bytes);
  const int64_t most = MaxReduceVectors(shots, num_ranks()) / row_vectors;
  const bool is_whole = row_bytes % kVectorBytes == 0 && IsAligned16(params.x) &&
                        IsAligned16(params.residual) && IsAligned16(params.sum) &&
                        IsAligned16(params.y) && IsAligned16(params.weight);
  for (int64_t begin = 0; begin < params.rows; begin += most) {
    const int64_t rows = std::min(most, params.rows - begin);
    const int64_t offset = begin * row_bytes;
    const char* const residual = static_cast<const char*>(params.residual);
    PAGODA_RETURN_IF_ERROR(Reduce(
        shots,
        params.dtype,
        PlanReduceNorm(
            KernelRanks(is_whole), rows, row_vectors, context_.num_sms, memory_->ranks_on_device()),
        rows * row_vectors,
        {.x = static_cast<const char*>(params.x) + offset,
         .residual = residual == nullptr ? nullptr : residual + offset,
         .sum = static_cast<char*>(params.sum) + offset,
         .weight = params.weight,
         .y = static_cast<char*>(params.y) + offset,
         .count = rows * params.width,
         .tile_count = params.width,
         .num_tiles = static_cast<int>(rows),
         .tile_vectors = static_cast<int>(row_vectors),
         .epsilon = params.epsilon,
         .weight_offset = params.weight_offset,
         .is_whole = is_whole}));
  }
  return absl::OkStatus();
}

absl::Status IpcGroup::AllGather(const AllGatherParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params, num_ranks()));
  PAGODA_RETURN_IF_ERROR(Poll());
  if (params.rows == 0 || params.row_bytes == 0) return absl::OkStatus();
  const int64_t most = kMaxGatherBytes / params.row_bytes;
  if (most == 0) return GatherTooLongError("AllGather.row_bytes", params.row_bytes);
  for (int64_t begin = 0; begin < params.rows; begin += most) {
    PAGODA_RETURN_IF_ERROR(
        LaunchGather(context_,
                     {.view = view_,
                      .x = static_cast<const char*>(params.x) + begin * params.row_bytes,
                      .y = static_cast<char*>(params.y) + begin * params.y_stride_bytes,
                      .rows = std::min(most, params.rows - begin),
                      .row_bytes = params.row_bytes,
                      .y_row_bytes = params.y_row_bytes,
                      .y_stride_bytes = params.y_stride_bytes},
                     programmatic()));
  }
  return absl::OkStatus();
}

absl::Status IpcGroup::Broadcast(const BroadcastParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params, num_ranks()));
  PAGODA_RETURN_IF_ERROR(Poll());
  for (int64_t begin = 0; begin < params.size_bytes; begin += kMaxGatherBytes) {
    const int64_t num_bytes = std::min(kMaxGatherBytes, params.size_bytes - begin);
    char* const data = static_cast<char*>(params.data) + begin;
    PAGODA_RETURN_IF_ERROR(LaunchGather(context_,
                                        {.view = view_,
                                         .x = rank() == params.root ? data : nullptr,
                                         .y = data,
                                         .rows = 1,
                                         .row_bytes = num_bytes,
                                         .y_row_bytes = num_bytes,
                                         .y_stride_bytes = num_bytes,
                                         .root = params.root},
                                        programmatic()));
  }
  return absl::OkStatus();
}

absl::Status IpcGroup::Poll() {
  if (std::atomic_ref<uint32_t>(host_->abort).load() != 0) return AbortedError();
  const uint32_t failure =
      std::atomic_ref<uint32_t>(host_->failure).load(std::memory_order_acquire);
  if (failure == 0) return absl::OkStatus();
  return FaultError(static_cast<CollectiveFault>(failure & 0xff),
                    {.rank = rank(),
                     .peer = static_cast<int>(failure >> 8),
                     .epoch = std::atomic_ref<uint32_t>(host_->epoch).load(),
                     .timeout_ns = static_cast<int64_t>(view_.timeout_ns)});
}

void IpcGroup::Abort() { std::atomic_ref<uint32_t>(host_->abort).store(1); }

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceGroup>> MakeIpcGroup(const DeviceContext& context,
                                                          const DeviceGroupOptions& options) {
  return MakeIpcGroup(context, options, Shots::kAuto);
}

absl::StatusOr<std::unique_ptr<DeviceGroup>> MakeIpcGroup(const DeviceContext& context,
                                                          const DeviceGroupOptions& options,
                                                          Shots shots) {
  PAGODA_RETURN_IF_ERROR(CheckGroupOptions(options, kMaxRanks));
  auto group = std::make_unique<IpcGroup>(context, shots);
  PAGODA_RETURN_IF_ERROR(group->Open(options));
  return group;
}

}  // namespace pagoda::kernels::cuda
