#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "daemon/server/gpu/device_families.h"
#include "daemon/server/replicas/engine_metrics_sum.h"
#include "daemon/server/server_metrics.h"
#include "daemon/server/serving_state.h"
#include "engine/metrics.h"
#include "kernels/base/mutex.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace pagoda::daemon {

// Label values of the info families. Empty strings until the model is loaded.
struct MetricsInfo {
  std::string model;  // the served name
  std::string architecture;
  std::string dtype;
  std::string device;
  std::string revision;
  uint64_t max_context_tokens = 0;
  uint64_t kv_block_tokens = 0;
  uint64_t num_kv_blocks = 0;
  double load_read_seconds = 0.0;
  double load_warmup_seconds = 0.0;
  // That the backend was built with; empty: without.
  std::string cuda_version;
  std::string nccl_version;
};

// One of several replicas.
struct ReplicaStats {
  bool has_workers = false;
  const engine::EngineMetrics* engine = nullptr;
  // Requests that it was given, by reason.
  uint64_t num_routed_by_prefix = 0;
  uint64_t num_routed_by_load = 0;
  uint64_t num_taken_over = 0;
};

// Makes the pagoda_* families from counters that others write; nothing is counted here, and no
// label holds what a client sent, so the number of series never grows. Thread-safe: scrapes.
class MetricsCollector final : public prometheus::Collectable {
 public:
  // All outlive the collector.
  MetricsCollector(EngineMetricsReader engine,
                   const ServerMetrics* server,
                   std::function<ServingState()> state)
      : engine_(std::move(engine)), server_(server), state_(std::move(state)) {}

  void SetInfo(MetricsInfo info);
  // What is told by replica; where there is only one, nothing.
  void SetReplicas(std::function<std::vector<ReplicaStats>()> replicas);
  // The devices of the workers; `readings` are of the GPUs among them.
  void SetDevices(std::vector<DeviceStats> devices, std::function<GpuReadings()> readings);
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const EngineMetricsReader engine_;
  const ServerMetrics* const server_;
  const std::function<ServingState()> state_;
  mutable Mutex mutex_;
  MetricsInfo info_ ABSL_GUARDED_BY(mutex_);
  std::function<std::vector<ReplicaStats>()> replicas_ ABSL_GUARDED_BY(mutex_);
  std::vector<DeviceStats> devices_ ABSL_GUARDED_BY(mutex_);
  std::function<GpuReadings()> gpu_readings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda::daemon
