// What an operator sees of the scheduler.

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/scheduler.h"

namespace pagoda::engine {

void Scheduler::Describe(int64_t now_ns, EngineState* state) const {
  waiting_.DescribeTenants(&state->tenants);
  const auto add = [now_ns, state](const Sequence* sequence) {
    const LiveRequest& live = *sequence->request;
    EngineState::Sequence described = {.key = sequence->key,
                                       .index = sequence->index,
                                       .tenant = live.request.tenant.name,
                                       .num_prompt_tokens = live.num_prompt_tokens,
                                       .num_known_tokens = sequence->num_known_tokens,
                                       .num_computed = sequence->num_computed,
                                       .num_blocks = sequence->tables[0].size(),
                                       .num_rows_in_flight = sequence->num_rows_in_flight,
                                       .num_preemptions = sequence->num_preemptions,
                                       .priority = sequence->order.priority,
                                       .age_ns = now_ns - live.request.arrival_ns};
    if (sequence->state == SequenceState::kRunning) described.slot = sequence->slot->value();
    state->sequences.push_back(std::move(described));
  };
  for (const Sequence* sequence : running_) add(sequence);
  std::vector<const Sequence*> waiting;
  waiting_.ForEach([&waiting](const Sequence* sequence) { waiting.push_back(sequence); });
  std::sort(waiting.begin(), waiting.end(), OrderLess());
  for (const Sequence* sequence : waiting) add(sequence);
}

}  // namespace pagoda::engine
