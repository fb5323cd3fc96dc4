#pragma once

#include <string>

#include "daemon/client/bench_options.h"
#include "daemon/client/bench_stats.h"
#include "pagoda/v1/inference.pb.h"

namespace pagoda::daemon {

// How requests leave, in words.
std::string DescribeLoad(const BenchOptions& options);
// For people: a few lines and a table.
std::string ReportTable(const BenchOptions& options, const BenchResult& result);
// For programs: one JSON document with the load, the model and the figures.
std::string ReportJson(const BenchOptions& options,
                       const v1::GetModelResponse& model,
                       const BenchResult& result);

}  // namespace pagoda::daemon
