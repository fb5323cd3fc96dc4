#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "daemon/client/bench_options.h"

namespace pagoda::daemon {

// What one request saw, in nanoseconds of one clock.
struct RequestOutcome {
  std::string failure;   // empty: it went well; else the kind of error
  int64_t due_ns = 0;    // when it was to leave: latencies count from here, so that a late client
                         // does not hide waiting
  int64_t sent_ns = 0;   // when it left
  int64_t first_ns = 0;  // first token; 0: none came
  int64_t last_ns = 0;   // last token
  int64_t end_ns = 0;    // status
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;
  int64_t num_output_tokens = 0;
  int64_t num_asked_tokens = 0;
  // Between messages that held tokens, as a reader of the stream sees them.
  std::vector<float> gaps_ms;
};

// Of a set of values; all 0 when it is empty.
struct Distribution {
  int64_t count = 0;
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};
// Percentiles by linear interpolation between the two nearest values.
Distribution Summarize(std::vector<double> values);

// How hard the client worked.
struct ClientLoad {
  double busiest_thread = 0;  // CPU time of the busiest of its threads over elapsed time
};

struct BenchResult {
  int64_t num_ok = 0;
  int64_t num_failed = 0;
  int64_t num_short = 0;  // fewer tokens than asked for, without an error
  int64_t num_good = 0;   // went well within the limits
  std::map<std::string, int64_t> failures;
  double seconds = 0;  // from the first request that was due to the last end
  int64_t num_prompt_tokens = 0, num_cached_tokens = 0, num_output_tokens = 0;
  double mean_concurrency = 0;
  // Milliseconds. TPOT: time after the first token over tokens after the first, for each request.
  Distribution ttft_ms, tpot_ms, itl_ms, e2e_ms;
  Distribution late_ms;  // leaving later than due
  ClientLoad client;
};

BenchResult Aggregate(const std::vector<RequestOutcome>& outcomes,
                      const ClientLoad& client,
                      const LatencyLimits& limits = {});

// Milliseconds of one request; absent where it had no tokens, or not more than one.
std::optional<double> TtftMs(const RequestOutcome& outcome);
std::optional<double> TpotMs(const RequestOutcome& outcome);
double E2eMs(const RequestOutcome& outcome);

// Why the figures may be the client's rather than the daemon's; empty when nothing says so.
std::vector<std::string> ClientWarnings(const BenchResult& result);

}  // namespace pagoda::daemon
