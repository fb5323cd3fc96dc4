#include "kernels/cuda/collective/nccl_group.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/collective/group_error.h"
#include "kernels/cuda/collective/nccl_library.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/launch.h"

namespace pagoda::kernels::cuda {
namespace {

using SteadyClock = std::chrono::steady_clock;

// NCCL has no limit of its own; a communicator of one rank serves tests.
constexpr int kMaxNcclRanks = 8;
// A call is taken up by a thread of NCCL's: soon, but for the first ones, which connect.
constexpr auto kFirstPause = std::chrono::microseconds(10);
constexpr auto kLongestNcclPause = std::chrono::milliseconds(1);
// For what is under way when a group ends.
constexpr auto kFarewell = std::chrono::seconds(5);

ncclDataType_t NcclType(DType dtype) {
  if (dtype == DType::kBFloat16) return ncclBfloat16;
  return dtype == DType::kFloat16 ? ncclFloat16 : ncclFloat32;
}

// How rank 0 tells the id of the communicator, or that there is none.
struct IdRecord {
  bool is_valid = false;
  ncclUniqueId id = {};
};
static_assert(std::is_trivially_copyable_v<IdRecord>);

class NcclGroup final : public DeviceGroup {
 public:
  NcclGroup(const DeviceContext& context, const NcclLibrary& nccl)
      : context_(context), nccl_(nccl) {}
  ~NcclGroup() override;
  absl::Status Open(const DeviceGroupOptions& options);

  int rank() const override { return rank_; }
  int num_ranks() const override { return num_ranks_; }
  absl::string_view transport() const override { return "nccl"; }

  absl::Status AllReduceSum(const AllReduceParams& params) override;
  bool SupportsAllReduceNorm(const AllReduceNormParams&) const override { return false; }
  absl::Status AllReduceNorm(const AllReduceNormParams&) override {
    return UnsupportedError("all_reduce_norm", "not in an nccl group; supported: all_reduce");
  }
  absl::Status AllGather(const AllGatherParams& params) override;
  absl::Status Broadcast(const BroadcastParams& params) override;
  absl::Status Poll() override;
  void Abort() override;

 private:
  // Makes a call of NCCL, and waits until the communicator has taken it up.
  template <typename Fn>
  absl::Status Call(absl::string_view name, Fn&& fn);
  absl::Status Settle(absl::string_view name, ncclResult_t result, SteadyClock::time_point end);
  absl::Status ErrorOf(absl::string_view name, ncclResult_t result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status GatherRows(const AllGatherParams& params);
  absl::Status ReserveScratch(size_t num_bytes);

  // ---- Constant after Open.
  const DeviceContext& context_;
  const NcclLibrary& nccl_;
  int rank_ = 0;
  int num_ranks_ = 1;
  std::chrono::nanoseconds timeout_{0};
  // ---- Of the group's thread.
  // For gathers whose rows are not all of y: the last is the largest, and recordings know the
  // others.
  std::vector<void*> scratches_;
  size_t scratch_bytes_ = 0;
  // ---- Shared with Abort.
  std::atomic<bool> aborted_{false};
  Mutex mutex_;
  ncclComm_t comm_ ABSL_GUARDED_BY(mutex_) = nullptr;  // null: aborted, or not yet made
};

absl::Status NcclGroup::Open(const DeviceGroupOptions& options) {
  rank_ = options.rank;
  num_ranks_ = options.num_ranks;
  timeout_ = std::chrono::nanoseconds(options.timeout_ns);
  IdRecord own;
  if (rank_ == 0) own.is_valid = nccl_.get_unique_id(&own.id) == ncclSuccess;
  std::vector<IdRecord> all(num_ranks_);
  PAGODA_RETURN_IF_ERROR(options.exchange(&own, all.data(), sizeof(own)));
  if (!all[0].is_valid) {
    return absl::UnavailableError(
        absl::StrCat("rank 0 has no id for an nccl group: ", nccl_.get_last_error(nullptr)));
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const auto end = SteadyClock::now() + timeout_;
  ncclResult_t result;
  {
    MutexLock lock(&mutex_);
    result = nccl_.comm_init_rank_config(&comm_, num_ranks_, all[0].id, rank_, &config);
  }
  return Settle("ncclCommInitRankConfig", result, end);
}

NcclGroup::~NcclGroup() {
  bool is_open;
  ncclResult_t result = ncclSuccess;
  {
    MutexLock lock(&mutex_);
    is_open = comm_ != nullptr;
    if (is_open) result = nccl_.comm_finalize(comm_);
  }
  if (is_open && Settle("ncclCommFinalize", result, SteadyClock::now() + kFarewell).ok()) {
    MutexLock lock(&mutex_);
    if (comm_ != nullptr) nccl_.comm_destroy(comm_);
    comm_ = nullptr;
  }
  Abort();
  for (void* const memory : scratches_) cudaFree(memory);
}

absl::Status NcclGroup::ErrorOf(absl::string_view name, ncclResult_t result) {
  return absl::UnavailableError(absl::StrCat("rank ",
                                             rank_,
                                             ": ",
                                             name,
                                             " failed: ",
                                             nccl_.get_error_string(result),
                                             " (",
                                             nccl_.get_last_error(comm_),
                                             ")"));
}

absl::Status NcclGroup::Settle(absl::string_view name,
                               ncclResult_t result,
                               SteadyClock::time_point end) {
  std::chrono::nanoseconds pause = kFirstPause;
  for (;;) {
    {
      MutexLock lock(&mutex_);
      if (aborted_ || comm_ == nullptr) {
        return result == ncclSuccess || result == ncclInProgress ? AbortedError()
                                                                 : ErrorOf(name, result);
      }
      if (result == ncclInProgress) {
        const ncclResult_t asked = nccl_.comm_get_async_error(comm_, &result);
        if (asked != ncclSuccess) result = asked;
      }
      if (result == ncclSuccess) return absl::OkStatus();
      if (result != ncclInProgress) return ErrorOf(name, result);
    }
    if (SteadyClock::now() >= end) {
      return absl::UnavailableError(
          absl::StrCat("rank ", rank_, ": ", name, " did not end in time: a rank is missing"));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::nanoseconds>(2 * pause, kLongestNcclPause);
  }
}

template <typename Fn>
absl::Status NcclGroup::Call(absl::string_view name, Fn&& fn) {
  ncclResult_t result;
  {
    MutexLock lock(&mutex_);
    if (aborted_ || comm_ == nullptr) return AbortedError();
    result = fn(comm_);
  }
  // What follows comes after what is no kernel of ours: it is not let in early.
  context_.weights_written = true;
  if (result == ncclSuccess) return absl::OkStatus();
  return Settle(name, result, SteadyClock::now() + timeout_);
}

absl::Status NcclGroup::AllReduceSum(const AllReduceParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  PAGODA_RETURN_IF_ERROR(Poll());
  if (params.count == 0) return absl::OkStatus();
  return Call("ncclAllReduce", [&](ncclComm_t comm) {
    return nccl_.all_reduce(params.x,
                            params.y,
                            static_cast<size_t>(params.count),
                            NcclType(params.dtype),
                            ncclSum,
                            comm,
                            context_.stream);
  });
}

absl::Status NcclGroup::AllGather(const AllGatherParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params, num_ranks_));
  PAGODA_RETURN_IF_ERROR(Poll());
  if (params.rows == 0 || params.row_bytes == 0) return absl::OkStatus();
  const bool is_plain = params.rows == 1 && params.y_row_bytes == num_ranks_ * params.row_bytes;
  if (!is_plain) return GatherRows(params);
  return Call("ncclAllGather", [&](ncclComm_t comm) {
    return nccl_.all_gather(params.x,
                            params.y,
                            static_cast<size_t>(params.row_bytes),
                            ncclUint8,
                            comm,
                            context_.stream);
  });
}

// NCCL knows no rows: they go through memory where each rank's are together.
absl::Status NcclGroup::GatherRows(const AllGatherParams& params) {
  const size_t rank_bytes = static_cast<size_t>(params.rows * params.row_bytes);
  PAGODA_RETURN_IF_ERROR(ReserveScratch(num_ranks_ * rank_bytes));
  char* const scratch = static_cast<char*>(scratches_.back());
  PAGODA_RETURN_IF_ERROR(Call("ncclAllGather", [&](ncclComm_t comm) {
    return nccl_.all_gather(params.x, scratch, rank_bytes, ncclUint8, comm, context_.stream);
  }));
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const int64_t begin = rank * params.row_bytes;
    const int64_t width = std::min(params.row_bytes, params.y_row_bytes - begin);
    if (width <= 0) break;
    PAGODA_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy2DAsync(static_cast<char*>(params.y) + begin,
                                     static_cast<size_t>(params.y_stride_bytes),
                                     scratch + static_cast<size_t>(rank) * rank_bytes,
                                     static_cast<size_t>(params.row_bytes),
                                     static_cast<size_t>(width),
                                     static_cast<size_t>(params.rows),
                                     cudaMemcpyDeviceToDevice,
                                     context_.stream),
                   "cudaMemcpy2DAsync",
                   "a gather of rows"));
  }
  return absl::OkStatus();
}

absl::Status NcclGroup::ReserveScratch(size_t num_bytes) {
  if (num_bytes <= scratch_bytes_) return absl::OkStatus();
  if (context_.recording) return NotWhileRecordingError("the first AllGather of this size");
  // Twice as much at least, so that all of them together take no more than twice the largest.
  num_bytes = std::max(num_bytes, 2 * scratch_bytes_);
  void* memory = nullptr;
  PAGODA_RETURN_IF_ERROR(
      CudaStatus(cudaMalloc(&memory, num_bytes), "cudaMalloc", "a gather of rows"));
  scratches_.push_back(memory);
  scratch_bytes_ = num_bytes;
  return absl::OkStatus();
}

absl::Status NcclGroup::Broadcast(const BroadcastParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params, num_ranks_));
  PAGODA_RETURN_IF_ERROR(Poll());
  if (params.size_bytes == 0) return absl::OkStatus();
  return Call("ncclBroadcast", [&](ncclComm_t comm) {
    return nccl_.broadcast(params.data,
                           params.data,
                           static_cast<size_t>(params.size_bytes),
                           ncclUint8,
                           params.root,
                           comm,
                           context_.stream);
  });
}

absl::Status NcclGroup::Poll() {
  if (aborted_) return AbortedError();
  MutexLock lock(&mutex_);
  if (comm_ == nullptr) return AbortedError();
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = nccl_.comm_get_async_error(comm_, &result);
  if (asked != ncclSuccess) result = asked;
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  return ErrorOf("the communicator", result);
}

void NcclGroup::Abort() {
  aborted_ = true;
  ncclComm_t comm = nullptr;
  {
    MutexLock lock(&mutex_);
    std::swap(comm, comm_);
  }
  if (comm == nullptr) return;
  // Kernels that wait end at once, but the call may last until graphs with its ops are gone: on a
  // thread of its own, so that whoever aborts does not wait.
  std::thread([abort = nccl_.comm_abort, comm] { abort(comm); }).detach();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceGroup>> MakeNcclGroup(const DeviceContext& context,
                                                           const DeviceGroupOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckGroupOptions(options, kMaxNcclRanks));
  PAGODA_ASSIGN_OR_RETURN(const NcclLibrary* const nccl, NcclLibrary::Get());
  auto group = std::make_unique<NcclGroup>(context, *nccl);
  PAGODA_RETURN_IF_ERROR(group->Open(options));
  return group;
}

std::string NcclBuildVersion() {
  return absl::StrCat(NCCL_MAJOR, ".", NCCL_MINOR, ".", NCCL_PATCH);
}

}  // namespace pagoda::kernels::cuda
