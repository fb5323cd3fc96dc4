#include "daemon/server/replicas/replica_families.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace pagoda::daemon {
namespace {

using Labels = FamilyWriter::Labels;

Labels LabelsOf(size_t replica) { return {{"replica", absl::StrCat(replica)}}; }

Labels LabelsOf(size_t replica, const char* name, const char* value) {
  return {{"replica", absl::StrCat(replica)}, {name, value}};
}

double KvUsage(const engine::EngineMetrics& engine) {
  const double total = engine.kv_blocks_total.value();
  return total > 0 ? engine.kv_blocks_used.value() / total : 0.0;
}

double NumRestarts(const engine::EngineMetrics& engine) {
  uint64_t num_restarts = 0;
  for (const engine::MetricCounter& count : engine.worker_restarts) num_restarts += count.value();
  return static_cast<double>(num_restarts);
}

}  // namespace

void WriteReplicas(const std::vector<ReplicaStats>& replicas, Families* out) {
  if (replicas.empty()) return;
  const auto write = [&](FamilyWriter family, auto value_of) {
    for (size_t i = 0; i < replicas.size(); ++i)
      family.Add(static_cast<double>(value_of(replicas[i])), LabelsOf(i));
  };
  using Stats = const ReplicaStats&;
  write(out->Gauge("pagoda_replica_up", "1 while the replica's workers take steps, else 0."),
        [](Stats r) { return r.has_workers ? 1 : 0; });
  write(out->Gauge("pagoda_replica_requests_running", "Sequences that take part in its steps."),
        [](Stats r) { return r.engine->requests_running.value(); });
  write(out->Gauge("pagoda_replica_requests_waiting", "Sequences that wait for a step of its."),
        [](Stats r) {
          return r.engine->requests_waiting.value() + r.engine->requests_preempted_waiting.value();
        });
  write(out->Gauge("pagoda_replica_kv_cache_usage_ratio",
                   "Share of its KV blocks that sequences use."),
        [](Stats r) { return KvUsage(*r.engine); });
  write(out->Counter("pagoda_replica_generation_tokens_total", "Tokens that it sampled."),
        [](Stats r) { return r.engine->generation_tokens.value(); });
  write(out->Counter("pagoda_replica_prefix_cache_query_tokens_total",
                     "Prompt tokens looked up in its prefix cache."),
        [](Stats r) { return r.engine->prefix_query_tokens.value(); });
  write(out->Counter("pagoda_replica_prefix_cache_hit_tokens_total",
                     "Prompt tokens found in its prefix cache."),
        [](Stats r) { return r.engine->prefix_hit_tokens.value(); });
  write(out->Counter("pagoda_replica_worker_restarts_total",
                     "Times that its lost workers were replaced."),
        [](Stats r) { return NumRestarts(*r.engine); });
  write(out->Counter("pagoda_replica_requests_given_away_total",
                     "Requests that went on elsewhere when it had lost its workers."),
        [](Stats r) { return r.engine->requests_given_away.value(); });
  FamilyWriter routed = out->Counter("pagoda_replica_requests_routed_total",
                                     "Requests that it was given: for the prefix that it holds, as "
                                     "the least busy, or when another had lost its workers.");
  for (size_t i = 0; i < replicas.size(); ++i) {
    const auto count = [](uint64_t n) { return static_cast<double>(n); };
    routed.Add(count(replicas[i].num_routed_by_prefix), LabelsOf(i, "reason", "prefix"))
        .Add(count(replicas[i].num_routed_by_load), LabelsOf(i, "reason", "load"))
        .Add(count(replicas[i].num_taken_over), LabelsOf(i, "reason", "taken_over"));
  }
}

}  // namespace pagoda::daemon
