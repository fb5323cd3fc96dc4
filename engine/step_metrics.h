#pragma once

#include "engine/kv/block_pool.h"
#include "engine/metrics.h"
#include "engine/scheduled_step.h"
#include "engine/scheduler.h"
#include "pagoda/internal/v1/worker.pb.h"

namespace pagoda::engine {

// What the engine counts once per step; requests and tokens are counted where they end and arise.

// Of a step just scheduled, also of one that is too empty to be sent.
void CountDecisions(const ScheduledStep& step, EngineMetrics* metrics);
// Of a step that has run.
void CountStep(const ScheduledStep& step,
               const internal::v1::StepResult& result,
               EngineMetrics* metrics);
void SetGauges(const Scheduler& scheduler, const BlockPool& pool, EngineMetrics* metrics);

}  // namespace pagoda::engine
