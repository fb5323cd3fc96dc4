#pragma once

#include <string>
#include <vector>

#include "daemon/client/bench_options.h"
#include "daemon/client/bench_stats.h"
#include "pagoda/v1/inference.pb.h"

namespace pagoda::daemon {

// A page for people: the table, how TTFT, TPOT, inter-token and end-to-end latencies are
// distributed, TTFT over time and output tokens a second over time. One file of valid HTML that
// loads nothing.
std::string ReportHtml(const BenchOptions& options,
                       const v1::GetModelResponse& model,
                       const BenchResult& result,
                       const std::vector<RequestOutcome>& outcomes);

}  // namespace pagoda::daemon
