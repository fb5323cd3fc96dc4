#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/step_clock.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr unsigned long long kCapacity = 1 << 20;

absl::Status Check(cudaError_t error, const char* call) {
  return CudaStatus(error, call, "the step clock");
}

}  // namespace

struct StepClock::Ring {
  unsigned long long count;
  // Nanoseconds, shifted left by one; the lowest bit is the mark.
  unsigned long long marks[kCapacity];
};

namespace {

__global__ void ClockMarkKernel(unsigned long long* count,
                                unsigned long long* marks,
                                unsigned mark) {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  marks[(*count)++ % kCapacity] = now << 1 | mark;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepClock>> StepClock::Create(const DeviceContext& context,
                                                             const std::string& path) {
  auto clock = std::unique_ptr<StepClock>(new StepClock(context, path));
  PAGODA_RETURN_IF_ERROR(
      Check(cudaMalloc(reinterpret_cast<void**>(&clock->ring_), sizeof(Ring)), "cudaMalloc"));
  PAGODA_RETURN_IF_ERROR(
      Check(cudaMemsetAsync(clock->ring_, 0, sizeof(Ring), context.stream), "cudaMemsetAsync"));
  return clock;
}

StepClock::~StepClock() {
  if (ring_ == nullptr) return;
  const auto ring = std::make_unique<Ring>();
  const cudaError_t copied = cudaMemcpy(ring.get(), ring_, sizeof(Ring), cudaMemcpyDeviceToHost);
  cudaFree(ring_);
  FILE* const file = copied == cudaSuccess ? std::fopen(path_.c_str(), "w") : nullptr;
  if (file == nullptr) {
    LogWarning("the marks of the step clock could not be written to %s", path_);
    return;
  }
  for (unsigned long long i = ring->count - std::min(ring->count, kCapacity); i < ring->count;
       ++i) {
    const unsigned long long mark = ring->marks[i % kCapacity];
    std::fprintf(file, "%s %llu\n", (mark & 1) == 0 ? "begin" : "end", mark >> 1);
  }
  std::fclose(file);
}

absl::Status StepClock::Add(Mark mark) {
  return Launch({.kernel = "step_clock"},
                context_.stream,
                ClockMarkKernel,
                &ring_->count,
                ring_->marks,
                static_cast<unsigned>(mark));
}

}  // namespace pagoda::kernels::cuda
