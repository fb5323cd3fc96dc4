#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagoda::engine {

// A number that only grows. One writer; any reader.
class MetricCounter {
 public:
  void Add(uint64_t n) {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// A state. One writer; any reader.
class MetricGauge {
 public:
  void Set(double v) { value_.store(v, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

// Counts of observations by upper bound (`le`). One writer; any reader.
class MetricHistogram {
 public:
  explicit MetricHistogram(std::vector<double> upper_bounds)
      : upper_bounds_(std::move(upper_bounds)), counts_(upper_bounds_.size() + 1) {}

  // Adds `weight` observations of `value`.
  void Observe(double value, uint64_t weight = 1) {
    size_t i = 0;
    while (i < upper_bounds_.size() && value > upper_bounds_[i]) ++i;
    counts_[i].Add(weight);
    sum_.Set(sum_.value() + value * static_cast<double>(weight));
  }
  // The same of a duration, where the bounds are in seconds.
  void ObserveNs(int64_t ns, uint64_t weight = 1) {
    Observe(static_cast<double>(ns) * 1e-9, weight);
  }
  // All that another with the same bounds has observed.
  void Add(const MetricHistogram& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i].Add(other.count(i));
    sum_.Set(sum_.value() + other.sum());
  }
  const std::vector<double>& upper_bounds() const { return upper_bounds_; }
  // Not cumulative; the last is above every bound.
  uint64_t count(size_t i) const { return counts_[i].value(); }
  double sum() const { return sum_.value(); }

 private:
  std::vector<double> upper_bounds_;
  std::vector<MetricCounter> counts_;
  MetricGauge sum_;
};

std::vector<double> TimeToFirstTokenBuckets();
std::vector<double> InterTokenBuckets();
std::vector<double> RequestPhaseBuckets();
std::vector<double> StepDurationBuckets();
std::vector<double> TokenCountBuckets();
std::vector<double> BatchSizeBuckets();

// How requests ended, for counting.
enum class Outcome : uint8_t { kStop, kLength, kCancelled, kDeadline, kRejected, kError };
inline constexpr size_t kNumOutcomes = 6;

// Why workers were replaced, for counting: parallel::WorkerFailure::Cause.
inline constexpr size_t kNumRestartCauses = 7;

// What the device of one rank did. Time is in nanoseconds.
struct DeviceMetrics {
  MetricCounter busy_ns, collective_ns;
  MetricCounter graph_replays, graph_captures, eager_steps;
};
// As many as a group has at most.
inline constexpr size_t kMaxDevices = 8;

// What the engine thread counts. Written by the engine thread alone; scrapes read it at any time.
struct EngineMetrics {
  MetricGauge requests_running, requests_waiting, requests_preempted_waiting;
  MetricGauge kv_blocks_total, kv_blocks_used, kv_blocks_cached, kv_blocks_free;
  std::array<MetricCounter, kNumOutcomes> requests_finished;
  MetricCounter prompt_tokens_computed, prompt_tokens_cached, generation_tokens;
  MetricCounter prefix_query_tokens, prefix_hit_tokens;
  MetricCounter preemptions, kv_evictions, steps;
  MetricCounter spec_drafts, spec_draft_tokens, spec_accepted_tokens;
  MetricHistogram time_to_first_token_seconds{TimeToFirstTokenBuckets()};
  MetricHistogram inter_token_seconds{InterTokenBuckets()};
  MetricHistogram request_seconds{RequestPhaseBuckets()}, queue_seconds{RequestPhaseBuckets()},
      prefill_seconds{RequestPhaseBuckets()}, decode_seconds{RequestPhaseBuckets()};
  MetricHistogram request_prompt_tokens{TokenCountBuckets()},
      request_generation_tokens{TokenCountBuckets()};
  MetricHistogram step_prefill_seconds{StepDurationBuckets()},
      step_decode_seconds{StepDurationBuckets()}, step_mixed_seconds{StepDurationBuckets()};
  MetricHistogram step_tokens{TokenCountBuckets()}, step_batch_size{BatchSizeBuckets()};
  std::array<MetricCounter, kNumRestartCauses> worker_restarts;
  // Sequences computed again after a loss of workers, and requests ended because workers failed at
  // them.
  MetricCounter recovered_sequences, quarantined_requests;
  // Requests that went on with another engine's workers.
  MetricCounter requests_given_away;
  MetricHistogram recovery_seconds{RequestPhaseBuckets()};
  MetricHistogram cancel_to_free_seconds{StepDurationBuckets()};
  std::array<DeviceMetrics, kMaxDevices> devices;  // by rank
};

}  // namespace pagoda::engine
