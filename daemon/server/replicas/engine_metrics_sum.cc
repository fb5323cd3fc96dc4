#include "daemon/server/replicas/engine_metrics_sum.h"

#include <array>
#include <cstddef>
#include <tuple>

namespace pagoda::daemon {
namespace {

using engine::DeviceMetrics;
using engine::EngineMetrics;
using engine::MetricCounter;
using engine::MetricGauge;
using engine::MetricHistogram;

void Add(const MetricCounter& from, MetricCounter* to) { to->Add(from.value()); }
void Add(const MetricGauge& from, MetricGauge* to) { to->Set(to->value() + from.value()); }
void Add(const MetricHistogram& from, MetricHistogram* to) { to->Add(from); }
void Add(const DeviceMetrics& from, DeviceMetrics* to) {
  Add(from.busy_ns, &to->busy_ns);
  Add(from.collective_ns, &to->collective_ns);
  Add(from.graph_replays, &to->graph_replays);
  Add(from.graph_captures, &to->graph_captures);
  Add(from.eager_steps, &to->eager_steps);
}
template <typename T, size_t kSize>
void Add(const std::array<T, kSize>& from, std::array<T, kSize>* to) {
  for (size_t i = 0; i < kSize; ++i) Add(from[i], &(*to)[i]);
}

constexpr auto kMembers = std::make_tuple(&EngineMetrics::requests_running,
                                          &EngineMetrics::requests_waiting,
                                          &EngineMetrics::requests_preempted_waiting,
                                          &EngineMetrics::kv_blocks_total,
                                          &EngineMetrics::kv_blocks_used,
                                          &EngineMetrics::kv_blocks_cached,
                                          &EngineMetrics::kv_blocks_free,
                                          &EngineMetrics::requests_finished,
                                          &EngineMetrics::prompt_tokens_computed,
                                          &EngineMetrics::prompt_tokens_cached,
                                          &EngineMetrics::generation_tokens,
                                          &EngineMetrics::prefix_query_tokens,
                                          &EngineMetrics::prefix_hit_tokens,
                                          &EngineMetrics::preemptions,
                                          &EngineMetrics::kv_evictions,
                                          &EngineMetrics::steps,
                                          &EngineMetrics::spec_drafts,
                                          &EngineMetrics::spec_draft_tokens,
                                          &EngineMetrics::spec_accepted_tokens,
                                          &EngineMetrics::time_to_first_token_seconds,
                                          &EngineMetrics::inter_token_seconds,
                                          &EngineMetrics::request_seconds,
                                          &EngineMetrics::queue_seconds,
                                          &EngineMetrics::prefill_seconds,
                                          &EngineMetrics::decode_seconds,
                                          &EngineMetrics::request_prompt_tokens,
                                          &EngineMetrics::request_generation_tokens,
                                          &EngineMetrics::step_prefill_seconds,
                                          &EngineMetrics::step_decode_seconds,
                                          &EngineMetrics::step_mixed_seconds,
                                          &EngineMetrics::step_tokens,
                                          &EngineMetrics::step_batch_size,
                                          &EngineMetrics::worker_restarts,
                                          &EngineMetrics::recovered_sequences,
                                          &EngineMetrics::quarantined_requests,
                                          &EngineMetrics::requests_given_away,
                                          &EngineMetrics::recovery_seconds,
                                          &EngineMetrics::cancel_to_free_seconds,
                                          &EngineMetrics::devices);

template <typename... Members>
constexpr size_t SizeOf(std::tuple<Members EngineMetrics::*...>) {
  return (sizeof(Members) + ...);
}
// Members lie side by side, without gaps.
static_assert(SizeOf(kMembers) == sizeof(EngineMetrics), "a member is not in the list");

}  // namespace

void AddEngineMetrics(const EngineMetrics& from, EngineMetrics* sum) {
  std::apply([&](auto... member) { (Add(from.*member, &(sum->*member)), ...); }, kMembers);
}

}  // namespace pagoda::daemon
