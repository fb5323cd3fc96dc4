#include "engine/step_metrics.h"

#include <algorithm>

namespace pagoda::engine {
void CountDecisions(const ScheduledStep& step, EngineMetrics* metrics) {
  metrics->preemptions.Add(step.num_preemptions);
  metrics->prefix_query_tokens.Add(step.num_query_tokens);
  metrics->prefix_hit_tokens.Add(step.num_hit_tokens);
}

void CountStep(const ScheduledStep& step,
               const internal::v1::StepResult& result,
               EngineMetrics* metrics) {
  size_t num_prefill_rows = 0;
  for (const ScheduledRow& row : step.rows) num_prefill_rows += row.is_prefill ? 1 : 0;
  MetricHistogram& phase = num_prefill_rows == 0                  ? metrics->step_decode_seconds
                           : num_prefill_rows == step.rows.size() ? metrics->step_prefill_seconds
                                                                  : metrics->step_mixed_seconds;
  phase.ObserveNs(result.end_ns() - std::min(result.start_ns(), result.end_ns()));
  metrics->step_tokens.Observe(step.num_tokens);
  metrics->step_batch_size.Observe(static_cast<double>(step.rows.size()));
  metrics->steps.Add(1);
  const size_t num_devices =
      std::min(metrics->devices.size(), static_cast<size_t>(result.device_work_size()));
  for (size_t i = 0; i < num_devices; ++i) {
    const internal::v1::DeviceWork& work = result.device_work(static_cast<int>(i));
    DeviceMetrics& device = metrics->devices[i];
    device.busy_ns.Add(work.busy_ns());
    device.collective_ns.Add(work.collective_ns());
    device.graph_replays.Add(work.graph_replays());
    device.graph_captures.Add(work.graph_captures());
    device.eager_steps.Add(work.eager_steps());
  }
}

void SetGauges(const Scheduler& scheduler, const BlockPool& pool, EngineMetrics* metrics) {
  metrics->requests_running.Set(static_cast<double>(scheduler.running().size()));
  metrics->requests_waiting.Set(static_cast<double>(scheduler.num_waiting()));
  metrics->requests_preempted_waiting.Set(static_cast<double>(scheduler.num_preempted_waiting()));
  metrics->kv_blocks_total.Set(pool.num_total());
  metrics->kv_blocks_used.Set(pool.num_used());
  metrics->kv_blocks_cached.Set(pool.num_cached());
  metrics->kv_blocks_free.Set(pool.num_free());
  metrics->kv_evictions.Add(pool.num_evictions() - metrics->kv_evictions.value());
}

}  // namespace pagoda::engine
