#include "engine/model/step_graphs.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// Steps between sizes: the share of padding stays below an eighth, but for the smallest, where
// every product of 5 to 8 rows costs the same.
int32_t NextSize(int32_t size) {
  if (size < 4) return size + 1;
  if (size < 8) return 8;
  if (size < 64) return size + 8;
  if (size < 256) return size + 16;
  return size + 32;
}

}  // namespace

StepGraphs::StepGraphs(int32_t max_rows) {
  for (int32_t size = 1; size < max_rows; size = NextSize(size)) sizes_.push_back(size);
  if (max_rows > 0) sizes_.push_back(max_rows);
}

int32_t StepGraphs::SizeFor(int32_t num_rows) const {
  const auto it = std::lower_bound(sizes_.begin(), sizes_.end(), num_rows);
  return it == sizes_.end() ? 0 : *it;
}

int StepGraphs::num_recorded() const {
  return static_cast<int>(std::count_if(
      entries_.begin(), entries_.end(), [](const auto& entry) { return entry.second.graph >= 0; }));
}

absl::Status StepGraphs::Record(kernels::Backend& backend,
                                Entry& entry,
                                absl::FunctionRef<absl::Status()> enqueue_ops) {
  PAGODA_RETURN_IF_ERROR(backend.BeginGraph());
  const absl::Status enqueued = enqueue_ops();
  // Also after a failure: nothing else may be recorded by accident.
  const absl::StatusOr<kernels::GraphId> graph = backend.EndGraph();
  PAGODA_RETURN_IF_ERROR(enqueued);
  PAGODA_RETURN_IF_ERROR(graph.status());
  entry.graph = *graph;
  ++counts_.num_captures;
  return absl::OkStatus();
}

absl::Status StepGraphs::Forget(kernels::Backend& backend) {
  for (auto& [key, entry] : entries_) {
    if (entry.graph < 0) continue;
    PAGODA_RETURN_IF_ERROR(backend.DropGraph(std::exchange(entry.graph, -1)));
  }
  return absl::OkStatus();
}

absl::Status StepGraphs::Run(kernels::Backend& backend,
                             int32_t size,
                             absl::FunctionRef<absl::Status()> enqueue_ops) {
  PAGODA_CHECK(std::binary_search(sizes_.begin(), sizes_.end(), size));
  Entry& entry = entries_[{.size = size, .attention_variant = backend.AttentionVariant()}];
  if (entry.num_runs++ == 0) return enqueue_ops();
  if (entry.graph < 0) PAGODA_RETURN_IF_ERROR(Record(backend, entry, enqueue_ops));
  ++counts_.num_replays;
  return backend.LaunchGraph(entry.graph);
}

}  // namespace pagoda::engine
