// Ranks that are late, lost or told to stop.

#include <chrono>
#include <cstdio>
#include <memory>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "tests/kernels/cuda/group_cases.h"

namespace pagoda::kernels::cuda::test {
namespace {

constexpr int64_t kCount = 4096;
constexpr int64_t kTimeoutMs = 1500;

// NCCL takes longer to begin, and has no limit afterwards.
int64_t TimeoutNs(Transport transport) {
  return (transport == Transport::kIpc ? kTimeoutMs : 30'000) * 1'000'000;
}

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Memory of zeros for a sum; never freed: its process ends.
absl::StatusOr<void*> Zeros(const Rank& rank) {
  void* data = nullptr;
  PAGODA_RETURN_IF_ERROR(Cuda(cudaMalloc(&data, kCount * 4), "cudaMalloc"));
  PAGODA_RETURN_IF_ERROR(
      Cuda(cudaMemsetAsync(data, 0, kCount * 4, rank.context.stream), "cudaMemsetAsync"));
  PAGODA_RETURN_IF_ERROR(Cuda(cudaStreamSynchronize(rank.context.stream), "cudaStreamSynchronize"));
  return data;
}

absl::Status ExpectWithin(const absl::Status& status,
                          std::initializer_list<absl::StatusCode> codes,
                          int64_t took_ms,
                          int64_t limit_ms) {
  bool expected = false;
  for (const absl::StatusCode code : codes) expected = expected || status.code() == code;
  if (!expected) return absl::InternalError(absl::StrCat("unexpected: ", status.ToString()));
  if (took_ms > limit_ms) {
    return absl::InternalError(
        absl::StrCat("it took ", took_ms, " ms, expected at most ", limit_ms));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunLateRank(Rank& rank, Transport transport) {
  PAGODA_ASSIGN_OR_RETURN(void* const data, Zeros(rank));
  PAGODA_ASSIGN_OR_RETURN(const auto group,
                          MakeGroup(transport, rank, Shots::kAuto, TimeoutNs(transport)));
  rank.All(true);
  if (rank.rank == rank.num_ranks - 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kTimeoutMs / 2));
  }
  PAGODA_RETURN_IF_ERROR(
      group->AllReduceSum({.x = data, .y = data, .count = kCount, .dtype = DType::kBFloat16}));
  PAGODA_RETURN_IF_ERROR(AwaitGroup(rank, *group));
  rank.All(true);
  return absl::OkStatus();
}

absl::Status RunAbort(Rank& rank, Transport transport) {
  PAGODA_ASSIGN_OR_RETURN(void* const data, Zeros(rank));
  PAGODA_ASSIGN_OR_RETURN(const auto group, MakeGroup(transport, rank));
  // One that connects all.
  PAGODA_RETURN_IF_ERROR(
      group->AllReduceSum({.x = data, .y = data, .count = kCount, .dtype = DType::kBFloat16}));
  PAGODA_RETURN_IF_ERROR(AwaitGroup(rank, *group));
  rank.All(true);
  absl::Status result = absl::OkStatus();
  if (rank.rank == 0) {
    PAGODA_RETURN_IF_ERROR(
        group->AllReduceSum({.x = data, .y = data, .count = kCount, .dtype = DType::kBFloat16}));
    std::thread aborter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      group->Abort();
    });
    const int64_t begin_ms = NowMs();
    // With one rank there is nothing to wait for.
    const absl::Status status = AwaitGroup(rank, *group, 10'000);
    aborter.join();
    const int64_t took_ms = NowMs() - begin_ms;
    if (rank.num_ranks > 1) {
      result = ExpectWithin(status, {absl::StatusCode::kAborted}, took_ms, 5000);
    }
    const absl::Status later =
        group->AllReduceSum({.x = data, .y = data, .count = kCount, .dtype = DType::kBFloat16});
    if (result.ok() && !absl::IsAborted(later)) {
      result = absl::InternalError(absl::StrCat("after Abort: ", later.ToString()));
    }
  }
  rank.All(true);
  if (rank.rank != 0 && transport == Transport::kIpc) {
    // Told on the device.
    (void)group->AllReduceSum({.x = data, .y = data, .count = kCount, .dtype = DType::kBFloat16});
    result = ExpectWithin(AwaitGroup(rank, *group, 10'000), {absl::StatusCode::kAborted}, 0, 5000);
  } else if (rank.rank != 0) {
    group->Abort();
  }
  rank.All(true);
  return result;
}

absl::Status RunKilledRank(Rank& rank, Transport transport) {
  cudaStream_t const stream = rank.context.stream;
  PAGODA_ASSIGN_OR_RETURN(void* const data, Zeros(rank));
  // Never destroyed: it would say farewell to a rank that is gone.
  PAGODA_ASSIGN_OR_RETURN(auto owned,
                          MakeGroup(transport, rank, Shots::kAuto, TimeoutNs(transport)));
  DeviceGroup* const group = owned.release();
  const AllReduceParams params = {.x = data, .y = data, .count = kCount, .dtype = DType::kBFloat16};
  PAGODA_RETURN_IF_ERROR(group->AllReduceSum(params));
  PAGODA_RETURN_IF_ERROR(AwaitGroup(rank, *group));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  PAGODA_RETURN_IF_ERROR(
      Cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture"));
  for (int i = 0; i < 4; ++i) PAGODA_RETURN_IF_ERROR(group->AllReduceSum(params));
  PAGODA_RETURN_IF_ERROR(Cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture"));
  PAGODA_RETURN_IF_ERROR(Cuda(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate"));
  PAGODA_RETURN_IF_ERROR(Cuda(cudaGraphLaunch(exec, stream), "cudaGraphLaunch"));
  PAGODA_RETURN_IF_ERROR(AwaitGroup(rank, *group));
  rank.All(true);
  if (rank.rank == rank.num_ranks - 1) {
    kill(getpid(), SIGKILL);
  }
  const int64_t begin_ms = NowMs();
  PAGODA_RETURN_IF_ERROR(Cuda(cudaGraphLaunch(exec, stream), "cudaGraphLaunch"));
  absl::Status status;
  if (transport == Transport::kIpc) {
    status = AwaitGroup(rank, *group, 20'000);
  } else {
    // Whoever watches over the ranks aborts.
    status = AwaitGroup(rank, *group, kTimeoutMs);
    group->Abort();
    const absl::Status ended = AwaitGroup(rank, *group, 10'000);
    if (absl::IsDeadlineExceeded(ended)) return ended;
    if (!status.ok()) status = ended;
  }
  const int64_t took_ms = NowMs() - begin_ms;
  std::printf("     rank %d after %lld ms: %s\n",
              rank.rank,
              static_cast<long long>(took_ms),
              status.ToString().c_str());
  std::fflush(stdout);
  return ExpectWithin(status,
                      {absl::StatusCode::kUnavailable, absl::StatusCode::kAborted},
                      took_ms,
                      kTimeoutMs + 8000);
}

}  // namespace pagoda::kernels::cuda::test
