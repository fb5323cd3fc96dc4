#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"

namespace pagoda::kernels::cpu {

// A fixed set of threads that run one function together, the caller among them. Between calls a
// thread spins for a short time, since ops of one step follow each other within microseconds, and
// then sleeps: idle pools cost nothing. Allocates nothing after construction. Thread-compatible:
// one caller at a time, and not from inside a function.
class ThreadPool {
 public:
  // REQUIRES: num_threads >= 1. The caller is one of them.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls function(i) once for each i in [0, num_threads()), i = 0 on the calling thread; returns
  // when all have ended.
  void Run(absl::FunctionRef<void(int thread_idx)> function);

 private:
  void WorkerMain(int thread_idx);

  const int num_threads_;
  std::vector<std::thread> threads_;  // constant after construction
  // Written by the caller before it advances epoch_, read by workers after they saw it.
  const absl::FunctionRef<void(int)>* function_ = nullptr;
  bool stopping_ = false;
  // Apart, so that waiting for one does not disturb the other.
  alignas(64) std::atomic<uint32_t> epoch_{0};        // number of calls so far
  alignas(64) std::atomic<uint32_t> num_running_{0};  // workers still inside function_
};

// The part of [0, total) that thread_idx of num_threads has: contiguous parts whose sizes differ by
// at most one.
inline std::pair<int64_t, int64_t> StaticPart(int64_t total, int thread_idx, int num_threads) {
  return {total * thread_idx / num_threads, total * (thread_idx + 1) / num_threads};
}

}  // namespace pagoda::kernels::cpu
