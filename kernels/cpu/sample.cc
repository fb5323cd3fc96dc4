#include <atomic>

#include "kernels/base/status_macros.h"
#include "kernels/cpu/ops.h"

namespace pagoda::kernels::cpu {

absl::Status Sample(Context& context, const SampleParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  // Rows differ in cost by two orders of magnitude, and none depends on who samples it: each thread
  // takes the next.
  std::atomic<int64_t> next{0};
  const auto work = [&](int thread_idx) {
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < params.rows;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      context.row_samplers[thread_idx].Sample(params, i);
    }
  };
  if (params.rows <= 1) {
    work(0);
  } else {
    context.pool.Run(work);
  }
  return absl::OkStatus();
}

}  // namespace pagoda::kernels::cpu
