#include "daemon/server/replicas/replica_set.h"

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/server/replicas/replica_config.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

using internal::v1::LoadProgress;

// Adds up what several workers have loaded. Thread-safe.
class ProgressSum {
 public:
  ProgressSum(size_t num_replicas, const parallel::WorkerPool::ProgressFn* progress)
      : parts_(num_replicas), progress_(*progress) {}

  void Note(size_t replica, const LoadProgress& part) {
    MutexLock lock(&mutex_);
    parts_[replica] = part;
    LoadProgress sum;
    sum.set_phase(part.phase());
    for (const LoadProgress& each : parts_) {
      sum.set_bytes_done(sum.bytes_done() + each.bytes_done());
      sum.set_bytes_total(sum.bytes_total() + each.bytes_total());
    }
    if (progress_) progress_(sum);
  }

 private:
  Mutex mutex_;
  std::vector<LoadProgress> parts_ ABSL_GUARDED_BY(mutex_);
  const parallel::WorkerPool::ProgressFn& progress_;
};

}  // namespace

ReplicaSet::ReplicaSet(size_t num_replicas) : seen_rounds_(num_replicas), has_ended_(num_replicas) {
  for (size_t i = 0; i < num_replicas; ++i)
    metrics_.push_back(std::make_unique<engine::EngineMetrics>());
}

ReplicaSet::~ReplicaSet() = default;

EngineMetricsReader ReplicaSet::metrics() const {
  std::vector<const engine::EngineMetrics*> all;
  for (const auto& each : metrics_) all.push_back(each.get());
  return EngineMetricsReader(std::move(all));
}

std::vector<ReplicaStats> ReplicaSet::Stats() const {
  std::vector<ReplicaStats> all;
  if (router_ == nullptr) return all;
  const auto routed = [this](size_t replica, ReplicaRouter::Reason reason) {
    return router_->num_routed(replica, reason);
  };
  for (size_t i = 0; i < replicas_.size(); ++i) {
    all.push_back({.has_workers = replicas_[i]->has_workers(),
                   .engine = metrics_[i].get(),
                   .num_routed_by_prefix = routed(i, ReplicaRouter::Reason::kPrefix),
                   .num_routed_by_load = routed(i, ReplicaRouter::Reason::kLoad),
                   .num_taken_over = routed(i, ReplicaRouter::Reason::kTakenOver)});
  }
  return all;
}

// ---- The start

absl::Status ReplicaSet::StartWorkers(const internal::v1::ServerConfig& config) {
  config_ = config;
  for (size_t i = 0; i < metrics_.size(); ++i) {
    const std::string name = metrics_.size() == 1 ? "" : absl::StrCat("replica ", i, ": ");
    replicas_.push_back(
        std::make_unique<Replica>(ConfigOfReplica(config, i), name, metrics_[i].get()));
    PAGODA_RETURN_IF_ERROR(replicas_.back()->StartWorkers());
  }
  return absl::OkStatus();
}

absl::Status ReplicaSet::Load(const parallel::WorkerPool::ProgressFn& progress,
                              ServedModel* model) {
  ProgressSum sum(replicas_.size(), &progress);
  std::vector<absl::Status> statuses(replicas_.size());
  const auto load = [&](size_t i) {
    statuses[i] =
        replicas_[i]->Load(*model, [&sum, i](const LoadProgress& part) { sum.Note(i, part); });
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < replicas_.size(); ++i) threads.emplace_back(load, i);
  load(0);
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) PAGODA_RETURN_IF_ERROR(status);

  // All have as many blocks as the one with the fewest, so that a request fits each or none.
  uint32_t num_kv_blocks = replicas_.front()->ready().num_kv_blocks();
  for (const auto& replica : replicas_)
    num_kv_blocks = std::min(num_kv_blocks, replica->ready().num_kv_blocks());
  num_kv_blocks_ = static_cast<int32_t>(num_kv_blocks);
  const auto num_replicas = static_cast<int32_t>(replicas_.size());
  model->num_kv_blocks = num_replicas * num_kv_blocks_;
  model->max_sequences *= num_replicas;
  return absl::OkStatus();
}

std::vector<DeviceStats> ReplicaSet::Devices() const {
  std::map<int, DeviceStats> by_index;
  int num_workers = 0;
  for (const std::unique_ptr<Replica>& replica : replicas_) {
    const std::vector<parallel::WorkerPool::Device> devices = replica->devices();
    for (size_t rank = 0; rank < devices.size(); ++rank, ++num_workers) {
      const auto& [hello, ready] = devices[rank];
      const bool is_gpu = !hello.pci_bus_id().empty();
      // Where workers have no devices of their own, each counts as one.
      const int index = is_gpu ? replica->DeviceIndexOfRank(rank) : num_workers;
      DeviceStats& device = by_index[index];
      device.index = index;
      device.name = hello.device_name();
      device.pci_bus_id = hello.pci_bus_id();
      device.measures_collectives = !is_gpu || devices.size() == 1;
      device.weight_bytes += ready.weight_bytes();
      device.kv_bytes += ready.kv_bytes();
      device.activation_bytes += ready.activation_bytes();
      device.workspace_bytes +=
          ready.taken_bytes() -
          std::min(ready.taken_bytes(), ready.weight_bytes() + ready.activation_bytes());
      if (rank < engine::kMaxDevices) device.work.push_back(&replica->metrics().devices[rank]);
    }
  }
  std::vector<DeviceStats> all;
  for (auto& [index, device] : by_index) all.push_back(std::move(device));
  return all;
}

double ReplicaSet::load_read_seconds() const {
  double longest = 0;
  for (const auto& replica : replicas_)
    longest = std::max(longest, replica->ready().read_seconds());
  return longest;
}

double ReplicaSet::load_warmup_seconds() const {
  double longest = 0;
  for (const auto& replica : replicas_)
    longest = std::max(longest, replica->ready().warmup_seconds());
  return longest;
}

void ReplicaSet::StartEngines(Parts parts) {
  on_end_ = std::move(parts.on_end);
  Replica::EngineParts of_each = {.model = parts.model,
                                  .num_kv_blocks = num_kv_blocks_,
                                  .sink = parts.sink,
                                  .clock = parts.clock};
  if (replicas_.size() == 1) {
    of_each.block_sink = parts.block_sink;
    replicas_.front()->MakeEngine(of_each);
    single_port_ = std::make_unique<EngineAsPort>(&engine());
  } else {
    const internal::v1::EngineConfig& config = config_.engine();
    group_ = std::make_unique<engine::EngineGroup>(config.prefix_hash_key());
    router_ = std::make_unique<ReplicaRouter>(ReplicaRouter::Options{
        .num_replicas = replicas_.size(),
        .group = group_.get(),
        .sink = parts.sink,
        .block_tokens = config.block_size(),
        .max_cached_blocks =
            config.prefix_caching() ? static_cast<size_t>(num_kv_blocks_) : size_t{0}});
    of_each.group = group_.get();
    for (size_t i = 0; i < replicas_.size(); ++i) {
      of_each.sink = router_->sink(i);
      of_each.peers = router_->peers(i);
      replicas_[i]->MakeEngine(of_each);
      router_->SetPort(i, replicas_[i].get());
    }
  }
  // Each may ask the others from its first step on.
  for (size_t i = 0; i < replicas_.size(); ++i)
    replicas_[i]->StartEngine([this, i](const absl::Status& end) { NoteEnd(i, end); });
}

void ReplicaSet::NoteEnd(size_t replica, const absl::Status& end) {
  size_t num_left = 0;
  {
    MutexLock lock(&mutex_);
    has_ended_[replica] = true;
    num_left = static_cast<size_t>(std::count(has_ended_.begin(), has_ended_.end(), false));
  }
  if (num_left == 0) return on_end_(end);
  if (!end.ok())
    LogError("replica %d is given up: %s; %d others serve on", replica, end.message(), num_left);
}

// ---- Serving

EnginePort* ReplicaSet::port() {
  if (router_ != nullptr) return router_.get();
  return single_port_.get();
}

std::vector<engine::Engine*> ReplicaSet::engines() {
  std::vector<engine::Engine*> engines;
  for (const std::unique_ptr<Replica>& replica : replicas_) engines.push_back(&replica->engine());
  return engines;
}

void ReplicaSet::Drain() {
  for (const auto& replica : replicas_) replica->engine().Drain();
}

void ReplicaSet::StopEngines(const absl::Status& why) {
  for (const auto& replica : replicas_) replica->StopEngine(why);
}

void ReplicaSet::StopWorkers() {
  for (const auto& replica : replicas_) replica->StopWorkers();
}

bool ReplicaSet::HasEnded(size_t replica) const {
  MutexLock lock(&mutex_);
  return has_ended_[replica];
}

Ability ReplicaSet::CurrentAbility(int64_t now_ns) const {
  Ability best = Ability::kNoWorkers;
  for (const auto& replica : replicas_) {
    if (!replica->has_workers()) continue;
    best = std::max(best, replica->late_at_ns() > now_ns ? Ability::kComputes : Ability::kIsLate);
  }
  return best;
}

uint64_t ReplicaSet::Pulse() {
  bool have_all_gone_round = true;
  for (size_t i = 0; i < replicas_.size(); ++i)
    have_all_gone_round &= HasEnded(i) || replicas_[i]->num_rounds() != seen_rounds_[i];
  if (!have_all_gone_round) return pulse_;
  for (size_t i = 0; i < replicas_.size(); ++i) seen_rounds_[i] = replicas_[i]->num_rounds();
  return ++pulse_;
}

void ReplicaSet::Nudge() {
  // Cancelling what no request is makes an engine go round.
  for (const auto& replica : replicas_) replica->Cancel(engine::RequestKey());
}

}  // namespace pagoda::daemon
