#include "daemon/client/bench_stats.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"

namespace pagoda::daemon {
namespace {

// Beyond these a thread has no time to read tokens when they come, or requests do not leave when
// they should.
constexpr double kBusyThread = 0.8;
constexpr double kLateMs = 10.0;

double Milliseconds(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

// REQUIRES: values is sorted and not empty; 0 <= fraction <= 1.
double Percentile(const std::vector<double>& values, double fraction) {
  const double position = fraction * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (position - static_cast<double>(below));
}

// A request without the figure that a limit is for keeps it, but one without a first token does
// not.
bool IsWithin(const RequestOutcome& outcome, const LatencyLimits& limits) {
  if (limits.ttft_ms && TtftMs(outcome).value_or(*limits.ttft_ms + 1) > *limits.ttft_ms)
    return false;
  if (limits.tpot_ms && TpotMs(outcome).value_or(0) > *limits.tpot_ms) return false;
  return !limits.e2e_ms || E2eMs(outcome) <= *limits.e2e_ms;
}

}  // namespace

std::optional<double> TtftMs(const RequestOutcome& outcome) {
  if (outcome.first_ns == 0) return std::nullopt;
  return Milliseconds(outcome.first_ns - outcome.due_ns);
}

std::optional<double> TpotMs(const RequestOutcome& outcome) {
  if (outcome.first_ns == 0 || outcome.num_output_tokens < 2) return std::nullopt;
  return Milliseconds(outcome.last_ns - outcome.first_ns) /
         static_cast<double>(outcome.num_output_tokens - 1);
}

double E2eMs(const RequestOutcome& outcome) {
  return Milliseconds(outcome.end_ns - outcome.due_ns);
}

Distribution Summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (const double value : values) sum += value;
  return {.count = static_cast<int64_t>(values.size()),
          .mean = sum / static_cast<double>(values.size()),
          .p50 = Percentile(values, 0.5),
          .p90 = Percentile(values, 0.9),
          .p99 = Percentile(values, 0.99),
          .max = values.back()};
}

BenchResult Aggregate(const std::vector<RequestOutcome>& outcomes,
                      const ClientLoad& client,
                      const LatencyLimits& limits) {
  BenchResult result;
  result.client = client;
  std::vector<double> ttft, tpot, itl, e2e, late;
  int64_t start_ns = std::numeric_limits<int64_t>::max(), end_ns = 0, busy_ns = 0;
  for (const RequestOutcome& outcome : outcomes) {
    start_ns = std::min(start_ns, outcome.due_ns);
    end_ns = std::max(end_ns, outcome.end_ns);
    busy_ns += outcome.end_ns - outcome.sent_ns;
    late.push_back(Milliseconds(outcome.sent_ns - outcome.due_ns));
    // Tokens count whatever became of their request: the daemon made them.
    result.num_prompt_tokens += outcome.num_prompt_tokens;
    result.num_cached_tokens += outcome.num_cached_tokens;
    result.num_output_tokens += outcome.num_output_tokens;
    if (!outcome.failure.empty()) {
      ++result.num_failed;
      ++result.failures[outcome.failure];
      continue;
    }
    ++result.num_ok;
    result.num_short += outcome.num_output_tokens < outcome.num_asked_tokens;
    result.num_good += IsWithin(outcome, limits);
    e2e.push_back(E2eMs(outcome));
    if (const auto ms = TtftMs(outcome)) ttft.push_back(*ms);
    if (const auto ms = TpotMs(outcome)) tpot.push_back(*ms);
    itl.insert(itl.end(), outcome.gaps_ms.begin(), outcome.gaps_ms.end());
  }
  if (outcomes.empty()) return result;
  result.seconds = static_cast<double>(end_ns - start_ns) * 1e-9;
  if (result.seconds > 0)
    result.mean_concurrency = static_cast<double>(busy_ns) * 1e-9 / result.seconds;
  result.ttft_ms = Summarize(std::move(ttft));
  result.tpot_ms = Summarize(std::move(tpot));
  result.itl_ms = Summarize(std::move(itl));
  result.e2e_ms = Summarize(std::move(e2e));
  result.late_ms = Summarize(std::move(late));
  return result;
}

std::vector<std::string> ClientWarnings(const BenchResult& result) {
  std::vector<std::string> warnings;
  if (result.client.busiest_thread >= kBusyThread) {
    warnings.push_back(
        absl::StrFormat("a thread of this client was busy %.0f %% of the time, so the client may "
                        "be the bottleneck: "
                        "raise --threads and --channels, or run several clients",
                        result.client.busiest_thread * 100));
  }
  if (result.late_ms.p99 >= kLateMs) {
    warnings.push_back(absl::StrFormat(
        "requests left up to %.1f ms late (p99), so the load was not the one asked for: "
        "raise --threads",
        result.late_ms.p99));
  }
  return warnings;
}

}  // namespace pagoda::daemon
