#pragma once

#include <utility>
#include <vector>

#include "engine/metrics.h"

namespace pagoda::daemon {

// Adds what one engine has counted to `sum`, which only this thread writes.
void AddEngineMetrics(const engine::EngineMetrics& from, engine::EngineMetrics* sum);

// What one engine counts, or several together, read as if there were one. Thread-safe; the metrics
// outlive it.
class EngineMetricsReader {
 public:
  // Of one.
  EngineMetricsReader(const engine::EngineMetrics* metrics)  // NOLINT: one is read as one
      : all_({metrics}) {}
  explicit EngineMetricsReader(std::vector<const engine::EngineMetrics*> all)
      : all_(std::move(all)) {}

  // Calls `read` with them.
  template <typename Read>
  auto With(Read read) const {
    if (all_.size() == 1) return read(*all_.front());
    engine::EngineMetrics sum;
    for (const engine::EngineMetrics* each : all_) AddEngineMetrics(*each, &sum);
    return read(sum);
  }

 private:
  const std::vector<const engine::EngineMetrics*> all_;
};

}  // namespace pagoda::daemon
