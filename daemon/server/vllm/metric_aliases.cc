#include "daemon/server/vllm/metric_aliases.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace pagoda::daemon {
namespace {

using Labels = FamilyWriter::Labels;

// A histogram by coarser edges. Every edge up to the last of the finer ones is one of them, so that
// no count is on the wrong side.
class Coarser {
 public:
  explicit Coarser(std::vector<double> upper_bounds)
      : upper_bounds_(std::move(upper_bounds)), counts_(upper_bounds_.size() + 1) {}

  template <typename Histogram>
  Coarser& Add(const Histogram& finer) {
    size_t to = 0;
    for (size_t from = 0; from <= finer.upper_bounds().size(); ++from) {
      const bool is_last = from == finer.upper_bounds().size();
      while (to < upper_bounds_.size() &&
             (is_last || finer.upper_bounds()[from] > upper_bounds_[to])) {
        ++to;
      }
      counts_[to] += finer.count(from);
    }
    sum_ += finer.sum();
    return *this;
  }

  const std::vector<double>& upper_bounds() const { return upper_bounds_; }
  uint64_t count(size_t i) const { return counts_[i]; }
  double sum() const { return sum_; }

 private:
  const std::vector<double> upper_bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0.0;
};

std::vector<double> FirstTokenEdges() {
  return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
          1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
}

std::vector<double> TokenTimeEdges() {
  return {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
}

std::vector<double> PhaseEdges() {
  return {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
          30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
}

std::vector<double> IterationEdges() {
  return {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
}

// 1, 2, 5, 10, ... up to the context, as far as there are finer edges.
std::vector<double> LengthEdges(uint64_t max_context_tokens) {
  const double last = engine::TokenCountBuckets().back();
  std::vector<double> edges;
  for (double decade = 1;; decade *= 10) {
    for (const double factor : {1, 2, 5}) {
      const double edge = decade * factor;
      if (edge > last || edge > static_cast<double>(max_context_tokens)) return edges;
      edges.push_back(edge);
    }
  }
}

double Count(const engine::MetricCounter& counter) { return static_cast<double>(counter.value()); }

Labels With(Labels labels, const char* name, std::string value) {
  labels.push_back({name, std::move(value)});
  return labels;
}

void WriteState(const engine::EngineMetrics& engine,
                const MetricsInfo& info,
                const Labels& labels,
                Families* out) {
  out->Gauge("vllm:num_requests_running", "Alias: sequences that take part in steps.")
      .Add(engine.requests_running.value(), labels);
  out->Gauge("vllm:num_requests_waiting", "Alias: sequences that wait for a step.")
      .Add(engine.requests_waiting.value() + engine.requests_preempted_waiting.value(), labels);
  const double total = engine.kv_blocks_total.value();
  out->Gauge("vllm:kv_cache_usage_perc", "Alias: share of the KV blocks in use, 0 to 1.")
      .Add(total > 0 ? engine.kv_blocks_used.value() / total : 0.0, labels);
  out->Gauge("vllm:cache_config_info", "Alias: shape of the KV cache; always 1.")
      .Add(1,
           {{"block_size", absl::StrCat(info.kv_block_tokens)},
            {"num_gpu_blocks", absl::StrCat(info.num_kv_blocks)},
            {"cache_dtype", info.dtype},
            {"engine", "0"}});
  out->Gauge("vllm:lora_requests_info", "Alias: adapters, of which there are none; the time.")
      .Add(static_cast<double>(absl::ToUnixSeconds(absl::Now())),
           {{"max_lora", "0"}, {"running_lora_adapters", ""}, {"waiting_lora_adapters", ""}});
}

void WriteCounters(const engine::EngineMetrics& engine, const Labels& labels, Families* out) {
  out->Counter("vllm:num_preemptions_total", "Alias: pagoda_preemptions_total.")
      .Add(Count(engine.preemptions), labels);
  out->Counter("vllm:prompt_tokens_total", "Alias: prompt tokens, computed and cached.")
      .Add(Count(engine.prompt_tokens_computed) + Count(engine.prompt_tokens_cached), labels);
  out->Counter("vllm:generation_tokens_total", "Alias: pagoda_generation_tokens_total.")
      .Add(Count(engine.generation_tokens), labels);
  out->Counter("vllm:prefix_cache_queries_total", "Alias: prompt tokens looked up.")
      .Add(Count(engine.prefix_query_tokens), labels);
  out->Counter("vllm:prefix_cache_hits_total", "Alias: prompt tokens found.")
      .Add(Count(engine.prefix_hit_tokens), labels);
  const auto finished = [&engine](engine::Outcome outcome) {
    return Count(engine.requests_finished[static_cast<size_t>(outcome)]);
  };
  out->Counter("vllm:request_success_total", "Alias: requests that ended, however they did.")
      .Add(finished(engine::Outcome::kStop), With(labels, "finished_reason", "stop"))
      .Add(finished(engine::Outcome::kLength), With(labels, "finished_reason", "length"))
      .Add(finished(engine::Outcome::kCancelled) + finished(engine::Outcome::kDeadline),
           With(labels, "finished_reason", "abort"))
      .Add(finished(engine::Outcome::kError), With(labels, "finished_reason", "error"));
}

}  // namespace

void WriteVllmAliases(const engine::EngineMetrics& engine,
                      const ServerMetrics& server,
                      const MetricsInfo& info,
                      Families* out) {
  const Labels labels = {{"model_name", info.model}, {"engine", "0"}};
  WriteState(engine, info, labels, out);
  WriteCounters(engine, labels, out);
  const auto write = [&](const char* name, std::vector<double> edges, const auto&... finer) {
    Coarser histogram(std::move(edges));
    (histogram.Add(finer), ...);
    out->Histogram(name, "Alias, with the edges that others have.").AddHistogram(histogram, labels);
  };
  write("vllm:time_to_first_token_seconds",
        FirstTokenEdges(),
        server.stream_first_token_seconds,
        server.unary_first_token_seconds);
  write("vllm:inter_token_latency_seconds", TokenTimeEdges(), engine.inter_token_seconds);
  write(
      "vllm:request_time_per_output_token_seconds", TokenTimeEdges(), server.output_token_seconds);
  write("vllm:e2e_request_latency_seconds", PhaseEdges(), engine.request_seconds);
  write("vllm:request_queue_time_seconds", PhaseEdges(), engine.queue_seconds);
  write("vllm:request_prefill_time_seconds", PhaseEdges(), engine.prefill_seconds);
  write("vllm:request_decode_time_seconds", PhaseEdges(), engine.decode_seconds);
  write("vllm:request_inference_time_seconds", PhaseEdges(), server.inference_seconds);
  const std::vector<double> lengths = LengthEdges(info.max_context_tokens);
  write("vllm:request_prompt_tokens", lengths, engine.request_prompt_tokens);
  write("vllm:request_generation_tokens", lengths, engine.request_generation_tokens);
  write("vllm:request_params_max_tokens", lengths, server.request_max_tokens);
  write("vllm:request_params_n", {1, 2, 5, 10, 20}, server.request_completions);
  write("vllm:iteration_tokens_total", IterationEdges(), engine.step_tokens);
}

}  // namespace pagoda::daemon
