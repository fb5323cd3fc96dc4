#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "daemon/server/engine_port.h"
#include "daemon/server/gpu/device_families.h"
#include "daemon/server/metrics_collector.h"
#include "daemon/server/readiness.h"
#include "daemon/server/replicas/engine_metrics_sum.h"
#include "daemon/server/replicas/replica.h"
#include "daemon/server/replicas/replica_router.h"
#include "daemon/server/served_model.h"
#include "engine/engine.h"
#include "kernels/base/clock.h"
#include "kernels/base/mutex.h"
#include "pagoda/internal/v1/config.pb.h"
#include "parallel/worker_pool.h"

namespace pagoda::daemon {

// The engines of the daemon with their workers: one, which the front end then talks to directly, or
// several behind a router. Main thread, where nothing else is said.
class ReplicaSet {
 public:
  explicit ReplicaSet(size_t num_replicas);
  ~ReplicaSet();

  // Counts exist from the beginning. Any thread.
  EngineMetricsReader metrics() const;
  // By replica; empty where there is only one. Any thread, once StartEngines has returned.
  std::vector<ReplicaStats> Stats() const;

  // ---- The start, in order
  // `config`: as after LoadServedModel.
  absl::Status StartWorkers(const internal::v1::ServerConfig& config);
  // Loads the model in all at once; `progress` sums them up and may be called from other threads,
  // one at a time. Sets what the model says of sizes.
  absl::Status Load(const parallel::WorkerPool::ProgressFn& progress, ServedModel* model);
  struct Parts {
    const ServedModel* model = nullptr;
    engine::OutputSink* sink = nullptr;
    engine::BlockEventSink* block_sink = nullptr;  // of a single replica
    const Clock* clock = nullptr;
    // On the thread of the last engine to end, with the reason if that one had to.
    std::function<void(const absl::Status& end)> on_end;
  };
  void StartEngines(Parts parts);

  // Of the first replica's first worker.
  const internal::v1::WorkerHello& hello() const { return replicas_.front()->hello(); }
  // What the workers run on and hold. After Load and before StartEngines; counts go on.
  std::vector<DeviceStats> Devices() const;

  // What loading took: of several, the longest.
  double load_read_seconds() const;
  double load_warmup_seconds() const;

  // ---- After StartEngines
  EnginePort* port();
  // Of a single replica.
  engine::Engine& engine() { return replicas_.front()->engine(); }
  // By replica.
  std::vector<engine::Engine*> engines();
  void Drain();
  // Ends every request with `why`. Idempotent, also before StartEngines.
  void StopEngines(const absl::Status& why);
  void StopWorkers();

  // For readiness: how those do that do best. Any thread.
  Ability CurrentAbility(int64_t now_ns) const;
  // For a watchdog: has changed if every engine has gone round since it changed last. One thread.
  uint64_t Pulse();
  // Makes idle engines go round. Any thread.
  void Nudge();

 private:
  void NoteEnd(size_t replica, const absl::Status& end);
  bool HasEnded(size_t replica) const;

  std::vector<std::unique_ptr<engine::EngineMetrics>> metrics_;
  std::unique_ptr<engine::EngineGroup> group_;  // of several
  std::unique_ptr<ReplicaRouter> router_;       // of several
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::unique_ptr<EngineAsPort> single_port_;
  internal::v1::ServerConfig config_;
  int32_t num_kv_blocks_ = 0;  // of each
  std::function<void(const absl::Status& end)> on_end_;

  // The watchdog's.
  std::vector<uint64_t> seen_rounds_;
  uint64_t pulse_ = 0;

  mutable Mutex mutex_;
  std::vector<bool> has_ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda::daemon
