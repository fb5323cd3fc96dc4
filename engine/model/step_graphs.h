#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/backend.h"

namespace pagoda::engine {

// Recorded steps. A step in which every sequence computes one token is padded to the next of a list
// of sizes, and each size has one graph. It is recorded when the size comes for the second time
// (the first shows the backend its shapes), so serving begins before any exists. Thread-compatible.
class StepGraphs {
 public:
  // Without graphs.
  StepGraphs() = default;
  // Sizes up to `max_rows`.
  explicit StepGraphs(int32_t max_rows);

  // The least size of at least `num_rows`; 0: such steps are not padded or recorded.
  int32_t SizeFor(int32_t num_rows) const;
  // Enqueues a step of `size` rows: what `enqueue_ops` enqueues, or its recording. REQUIRES: `size`
  // came from SizeFor, and the ops take the same numbers and addresses each time.
  absl::Status Run(kernels::Backend& backend,
                   int32_t size,
                   absl::FunctionRef<absl::Status()> enqueue_ops);

  // Drops all recordings; sizes that were seen are recorded again when they come. REQUIRES: no
  // step is under way.
  absl::Status Forget(kernels::Backend& backend);

  int num_recorded() const;

 private:
  struct Entry {
    int32_t size = 0;
    int num_runs = 0;
    kernels::GraphId graph = -1;
  };

  absl::Status Record(kernels::Backend& backend,
                      Entry& entry,
                      absl::FunctionRef<absl::Status()> enqueue_ops);

  std::vector<Entry> entries_;  // sizes rise
};

}  // namespace pagoda::engine
