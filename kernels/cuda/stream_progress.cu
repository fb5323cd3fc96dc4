#include <atomic>
#include <chrono>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/primitives.cuh"
#include "kernels/cuda/stream_progress.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr int64_t kAskPeriodNs = 1'000'000;

// A release at the scope of the system: whoever sees the number sees what earlier kernels wrote.
__global__ void ProgressMarkKernel(uint64_t* reached, uint64_t mark) {
  LaunchNext();
  WaitForPrevious();
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(reached), "l"(mark) : "memory");
}

int64_t NowNs() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StreamProgress>> StreamProgress::Create(
    const DeviceContext& context) {
  auto progress = std::unique_ptr<StreamProgress>(new StreamProgress(context));
  PAGODA_RETURN_IF_ERROR(CudaStatus(
      cudaHostAlloc(
          reinterpret_cast<void**>(&progress->reached_), sizeof(uint64_t), cudaHostAllocDefault),
      "cudaHostAlloc",
      "the progress of the stream"));
  *progress->reached_ = 0;
  return progress;
}

StreamProgress::~StreamProgress() {
  if (reached_ != nullptr) cudaFreeHost(reached_);
}

absl::StatusOr<uint64_t> StreamProgress::Mark() {
  PAGODA_RETURN_IF_ERROR(Launch(
      context_, {.kernel = "stream_progress"}, ProgressMarkKernel, reached_, last_mark_ + 1));
  return ++last_mark_;
}

absl::StatusOr<bool> StreamProgress::Reached(uint64_t mark) {
  const auto is_reached = [&] {
    return std::atomic_ref<uint64_t>(*reached_).load(std::memory_order_acquire) >= mark;
  };
  if (is_reached()) return true;
  const int64_t now_ns = NowNs();
  if (now_ns - asked_ns_ < kAskPeriodNs) return false;
  asked_ns_ = now_ns;
  const cudaError_t error = cudaStreamQuery(context_.stream);
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  PAGODA_RETURN_IF_ERROR(CudaStatus(error, "cudaStreamQuery", "an op before the event"));
  return is_reached();
}

}  // namespace pagoda::kernels::cuda
