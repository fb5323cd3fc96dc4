#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/server/memory_plan.h"
#include "daemon/server/pulse_pipe.h"
#include "daemon/server/replicas/replica_router.h"
#include "daemon/server/served_model.h"
#include "engine/engine.h"
#include "engine/metrics.h"
#include "kernels/base/clock.h"
#include "pagoda/internal/v1/config.pb.h"
#include "parallel/worker_pool.h"

namespace pagoda::daemon {

// One engine, the thread that runs it and its workers. Main thread, where nothing else is said.
class Replica final : public ReplicaPort {
 public:
  // `metrics` outlives it. `name` begins what it logs: empty, or "replica 1: ".
  Replica(const internal::v1::ServerConfig& config,
          std::string name,
          engine::EngineMetrics* metrics);
  ~Replica() override;

  // Starts the workers, which die with this thread.
  absl::Status StartWorkers();
  // Plans the memory that `share` of the workers' device holds, and loads the model: on any one
  // thread.
  absl::Status Load(const ServedModel& model, const parallel::WorkerPool::ProgressFn& progress);

  struct EngineParts {
    const ServedModel* model = nullptr;
    int32_t num_kv_blocks = 0;  // no more than this one has
    engine::OutputSink* sink = nullptr;
    engine::BlockEventSink* block_sink = nullptr;
    engine::EngineGroup* group = nullptr;
    engine::EnginePeers* peers = nullptr;
    const Clock* clock = nullptr;
  };
  void MakeEngine(const EngineParts& parts);
  // `on_end` is called on the engine's thread.
  void StartEngine(std::function<void(const absl::Status& end)> on_end);
  // Ends requests with `why` and joins. Idempotent; does nothing before StartEngine.
  void StopEngine(const absl::Status& why);
  void StopWorkers();

  engine::Engine& engine() { return *engine_; }
  const engine::EngineMetrics& metrics() const { return *metrics_; }
  // Of what was loaded.
  const internal::v1::ModelReady& ready() const { return ready_; }
  const internal::v1::WorkerHello& hello() const { return pool_->hello(); }
  // By rank, before StartEngine.
  std::vector<parallel::WorkerPool::Device> devices() const { return pool_->devices(); }
  int DeviceIndexOfRank(size_t rank) const;
  // Any thread: rounds that the engine has gone.
  uint64_t num_rounds() const { return pulse_->num_rounds(); }

  // ReplicaPort; any thread.
  absl::Status TrySubmit(engine::Request* request) override { return engine_->TrySubmit(request); }
  bool Adopt(std::unique_ptr<engine::LiveRequest>* request) override {
    return engine_->Adopt(request);
  }
  void Cancel(engine::RequestKey key) override { engine_->Cancel(key); }
  bool has_workers() const override { return engine_->has_workers(); }
  int64_t late_at_ns() const { return engine_->late_at_ns(); }

 private:
  absl::Status PlanAndLog(const ServedModel& model);

  const internal::v1::ServerConfig config_;
  const std::string name_;
  engine::EngineMetrics* const metrics_;
  std::unique_ptr<parallel::WorkerPool> pool_;
  MemoryPlan plan_;
  internal::v1::ModelReady ready_;
  std::unique_ptr<PulsePipe> pulse_;
  std::unique_ptr<engine::Engine> engine_;
  std::thread thread_;
};

}  // namespace pagoda::daemon
