#include "kernels/cpu/thread_pool.h"

#include <ctime>

#include "kernels/base/check.h"

namespace pagoda::kernels::cpu {
namespace {

// Longer than the gap between two ops of a step and than the serial work of a sampler; short enough
// that a pool that waits for its next step costs well under one percent of a core.
constexpr int64_t kSpinNs = 60'000;
// Reading the clock costs as much as this many pauses.
constexpr int kPausesPerClockRead = 32;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Returns when `word` no longer holds `old`.
void AwaitChange(const std::atomic<uint32_t>& word, uint32_t old) {
  const int64_t start_ns = NowNs();
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (word.load(std::memory_order_acquire) != old) return;
      Pause();
    }
  } while (NowNs() - start_ns < kSpinNs);
  word.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  PAGODA_CHECK(num_threads >= 1);
  threads_.reserve(num_threads - 1);
  for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { WorkerMain(i); });
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(absl::FunctionRef<void(int)> function) {
  if (num_threads_ == 1) {
    function(0);
    return;
  }
  function_ = &function;
  num_running_.store(num_threads_ - 1, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  function(0);
  uint32_t running = num_running_.load(std::memory_order_acquire);
  while (running != 0) {
    AwaitChange(num_running_, running);
    running = num_running_.load(std::memory_order_acquire);
  }
}

void ThreadPool::WorkerMain(int thread_idx) {
  uint32_t seen = 0;
  while (true) {
    AwaitChange(epoch_, seen);
    ++seen;
    if (stopping_) return;
    (*function_)(thread_idx);
    if (num_running_.fetch_sub(1, std::memory_order_acq_rel) == 1) num_running_.notify_one();
  }
}

}  // namespace pagoda::kernels::cpu
