#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/backend.h"

namespace pagoda::engine {

// Recorded steps, or parts of them. Steps are padded to the next of a list of sizes, and each size
// has one graph for each kind of attention that its batches need (Backend::AttentionVariant). A
// graph is recorded when its size comes for the second time (the first shows the backend its
// shapes), so serving begins before any exists. Thread-compatible.
class StepGraphs {
 public:
  // Without graphs.
  StepGraphs() = default;
  // Sizes up to `max_rows`.
  explicit StepGraphs(int32_t max_rows);

  // The least size of at least `num_rows`; 0: such steps are not padded or recorded.
  int32_t SizeFor(int32_t num_rows) const;
  int32_t max_size() const { return sizes_.empty() ? 0 : sizes_.back(); }
  int num_sizes() const { return static_cast<int>(sizes_.size()); }
  // Enqueues a step of `size` rows whose batch was prepared: what `enqueue_ops` enqueues, or its
  // recording. REQUIRES: `size` came from SizeFor, and the ops take the same numbers and addresses
  // each time.
  absl::Status Run(kernels::Backend& backend,
                   int32_t size,
                   absl::FunctionRef<absl::Status()> enqueue_ops);

  // Drops all recordings; sizes that were seen are recorded again when they come. REQUIRES: no
  // step is under way.
  absl::Status Forget(kernels::Backend& backend);

  int num_recorded() const;
  // What Run has done since this was called last.
  struct Counts {
    uint32_t num_replays = 0;
    uint32_t num_captures = 0;
  };
  Counts TakeCounts() { return std::exchange(counts_, Counts()); }

 private:
  struct Key {
    int32_t size = 0;
    uint32_t attention_variant = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    int num_runs = 0;
    kernels::GraphId graph = -1;
  };

  absl::Status Record(kernels::Backend& backend,
                      Entry& entry,
                      absl::FunctionRef<absl::Status()> enqueue_ops);

  std::vector<int32_t> sizes_;  // rise
  std::map<Key, Entry> entries_;
  Counts counts_;
};

}  // namespace pagoda::engine
