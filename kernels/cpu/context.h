#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/sample_row.h"
#include "kernels/cpu/thread_pool.h"

namespace pagoda::kernels::cpu {

// Memory that ops use while they run. Grows to the largest request and stays: steady state
// allocates nothing. Contents do not survive the next Reserve. Thread-compatible.
class Scratch {
 public:
  // 64-byte aligned, and what data() gives until the next call. RESOURCE_EXHAUSTED without memory.
  absl::StatusOr<void*> Reserve(size_t size_bytes);
  void* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(void* data) const;
  };
  std::unique_ptr<void, Free> data_;
  size_t size_bytes_ = 0;
};

// What every op needs: kernels, threads, scratch. Owned by the backend; thread-compatible.
struct Context {
  Context(const KernelTable& table, int num_threads)
      : kernels(table),
        pool(num_threads),
        thread_scratch(num_threads),
        row_samplers(num_threads, RowSampler(table.sample)) {}

  const KernelTable& kernels;
  ThreadPool pool;
  Scratch shared_scratch;                // caller's, read by all threads of an op
  std::vector<Scratch> thread_scratch;   // one a thread
  std::vector<RowSampler> row_samplers;  // one a thread

  // Calls function(begin, end, thread_idx) for contiguous parts of [0, total) on the pool, or on
  // this thread alone where the whole work is smaller than waking others is worth. `total_cost` is
  // in nanoseconds of one thread, roughly.
  template <typename F>
  void ParallelFor(int64_t total, int64_t total_cost, F&& function) {
    constexpr int64_t kWorthwhileNs = 4000;
    if (total <= 1 || total_cost < kWorthwhileNs || pool.num_threads() == 1) {
      if (total > 0) function(int64_t{0}, total, 0);
      return;
    }
    pool.Run([&](int thread_idx) {
      const auto [begin, end] = StaticPart(total, thread_idx, pool.num_threads());
      if (begin < end) function(begin, end, thread_idx);
    });
  }
};

}  // namespace pagoda::kernels::cpu
