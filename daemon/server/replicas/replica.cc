#include "daemon/server/replicas/replica.h"

#include <algorithm>
#include <pthread.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/server/replicas/replica_config.h"
#include "engine/model/kv_pool.h"
#include "engine/model/rank_group.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {

Replica::Replica(const internal::v1::ServerConfig& config,
                 std::string name,
                 engine::EngineMetrics* metrics)
    : config_(config), name_(std::move(name)), metrics_(metrics) {}

Replica::~Replica() = default;

absl::Status Replica::StartWorkers() {
  const int32_t num_ranks = NumTensorRanks(config_);
  PAGODA_ASSIGN_OR_RETURN(
      pool_,
      parallel::WorkerPool::Start({.config = config_,
                                   .worker_command = {"/proc/self/exe", "worker"},
                                   .num_ranks = num_ranks}));
  LogInfo("%sworker %d on %s (%s)%s",
          name_,
          pool_->hello().pid(),
          pool_->hello().device(),
          pool_->hello().device_name(),
          num_ranks > 1 ? absl::StrCat(", rank 0 of ", num_ranks) : "");
  return absl::OkStatus();
}

absl::Status Replica::PlanAndLog(const ServedModel& model) {
  PAGODA_ASSIGN_OR_RETURN(const DType dtype, ResolveDType(config_, model.config));
  const internal::v1::WorkerHello hello = ShareOfReplica(config_, pool_->hello());
  PAGODA_ASSIGN_OR_RETURN(plan_,
                          PlanMemory({.config = &config_,
                                      .model = &model.config,
                                      .dtype = dtype,
                                      .max_model_len = model.max_context_tokens,
                                      .hello = &hello}));
  for (const std::string& line : plan_.ToLines()) LogInfo("%s%s", name_, line);
  return absl::OkStatus();
}

absl::Status Replica::Load(const ServedModel& model,
                           const parallel::WorkerPool::ProgressFn& progress) {
  PAGODA_RETURN_IF_ERROR(PlanAndLog(model));
  internal::v1::LoadModel load;
  load.set_num_kv_blocks(static_cast<uint32_t>(plan_.kv.num_blocks));
  PAGODA_ASSIGN_OR_RETURN(ready_, pool_->Load(load, progress));
  if (ready_.taken_bytes() != 0) LogInfo("%s%s", name_, MeasuredMemoryLine(plan_, ready_));
  const double seconds = std::max(ready_.read_seconds(), 1e-9);
  LogInfo("%sloaded %s of weights in %.2f s (%.1f GB/s), warmed up in %.2f s",
          name_,
          FormatBytes(ready_.weight_bytes()),
          ready_.read_seconds(),
          static_cast<double>(ready_.weight_bytes()) * 1e-9 / seconds,
          ready_.warmup_seconds());
  return absl::OkStatus();
}

int Replica::DeviceIndexOfRank(size_t rank) const {
  return engine::DeviceIndexOf(config_.worker(), static_cast<uint32_t>(rank));
}

void Replica::MakeEngine(const EngineParts& parts) {
  const ServedModel& model = *parts.model;
  pulse_ = std::make_unique<PulsePipe>(pool_.get());
  engine_ = std::make_unique<engine::Engine>(
      engine::EngineOptions{.config = config_.engine(),
                            .max_model_len = model.max_context_tokens,
                            .vocab_size = model.num_known_ids,
                            .num_kv_blocks = parts.num_kv_blocks,
                            .kv_window = engine::KvPool::Window(model.config),
                            .pipe = pulse_.get(),
                            .sink = parts.sink,
                            .block_sink = parts.block_sink,
                            .metrics = metrics_,
                            .tokenizer = model.tokenizer.get(),
                            .clock = parts.clock,
                            .group = parts.group,
                            .peers = parts.peers,
                            .log_prefix = name_});
}

void Replica::StartEngine(std::function<void(const absl::Status& end)> on_end) {
  thread_ = std::thread([this, on_end = std::move(on_end)] {
    on_end(engine_->Run());
    // Workers that this thread has started die with it.
    pool_->Stop();
  });
  pthread_setname_np(thread_.native_handle(), "engine");
}

void Replica::StopEngine(const absl::Status& why) {
  if (!thread_.joinable()) return;
  engine_->Stop(why);
  thread_.join();
}

void Replica::StopWorkers() {
  if (pool_ != nullptr) pool_->Stop();
}

}  // namespace pagoda::daemon
