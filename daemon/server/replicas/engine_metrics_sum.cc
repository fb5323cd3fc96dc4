#include "daemon/server/replicas/engine_metrics_sum.h"

#include <array>
#include <cstddef>
#include <tuple>

namespace pagoda::daemon {
namespace {

using engine::EngineMetrics;
using engine::MetricCounter;
using engine::MetricGauge;
using engine::MetricHistogram;

void Add(const MetricCounter& from, MetricCounter* to) { to->Add(from.value()); }
void Add(const MetricGauge& from, MetricGauge* to) { to->Set(to->value() + from.value()); }
void Add(const MetricHistogram& from, MetricHistogram* to) { to->Add(from); }
template <size_t kSize>
void Add(const std::array<MetricCounter, kSize>& from, std::array<MetricCounter, kSize>* to) {
  for (size_t i = 0; i < kSize; ++i) (*to)[i].Add(from[i].value());
}

// Every member, by reference. One that is added to the struct and not here does not compile.
template <typename Metrics>
auto MembersOf(Metrics& metrics) {
  auto& [running,
         waiting,
         preempted,
         blocks,
         blocks_used,
         blocks_cached,
         blocks_free,
         finished,
         computed,
         cached,
         generated,
         queried,
         hit,
         preemptions,
         evictions,
         steps,
         drafts,
         draft_tokens,
         accepted_tokens,
         first_token,
         inter_token,
         request,
         queue,
         prefill,
         decode,
         prompt_tokens,
         generation_tokens,
         step_prefill,
         step_decode,
         step_mixed,
         step_tokens,
         batch_size,
         restarts,
         recovered,
         quarantined,
         given_away,
         recovery,
         cancel] = metrics;
  return std::tie(running,
                  waiting,
                  preempted,
                  blocks,
                  blocks_used,
                  blocks_cached,
                  blocks_free,
                  finished,
                  computed,
                  cached,
                  generated,
                  queried,
                  hit,
                  preemptions,
                  evictions,
                  steps,
                  drafts,
                  draft_tokens,
                  accepted_tokens,
                  first_token,
                  inter_token,
                  request,
                  queue,
                  prefill,
                  decode,
                  prompt_tokens,
                  generation_tokens,
                  step_prefill,
                  step_decode,
                  step_mixed,
                  step_tokens,
                  batch_size,
                  restarts,
                  recovered,
                  quarantined,
                  given_away,
                  recovery,
                  cancel);
}

template <typename From, typename To, size_t... kIndex>
void AddEach(const From& from, const To& to, std::index_sequence<kIndex...>) {
  (Add(std::get<kIndex>(from), &std::get<kIndex>(to)), ...);
}

}  // namespace

void AddEngineMetrics(const EngineMetrics& from, EngineMetrics* sum) {
  const auto members = MembersOf(from);
  AddEach(
      members, MembersOf(*sum), std::make_index_sequence<std::tuple_size_v<decltype(members)>>());
}

}  // namespace pagoda::daemon
