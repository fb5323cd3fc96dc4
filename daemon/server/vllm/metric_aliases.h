#pragma once

#include "daemon/server/family_writer.h"
#include "daemon/server/metrics_collector.h"
#include "daemon/server/server_metrics.h"
#include "engine/metrics.h"

namespace pagoda::daemon {

// The families of vLLM that endpoint pickers, autoscalers and dashboards ask for, with its labels
// and bucket edges, so that sums over a mixed fleet are right. Made of the counts behind the
// pagoda_* families; nothing is counted twice.
void WriteVllmAliases(const engine::EngineMetrics& engine,
                      const ServerMetrics& server,
                      const MetricsInfo& info,
                      Families* out);

}  // namespace pagoda::daemon
