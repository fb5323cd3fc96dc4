#include "daemon/client/bench_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pagoda::daemon {
namespace {

const char* NameOf(Arrival arrival) {
  switch (arrival) {
    case Arrival::kPoisson:
      return "poisson";
    case Arrival::kFixed:
      return "fixed";
    case Arrival::kAtOnce:
      return "at-once";
  }
  return "";
}

double PerSecond(const BenchResult& result, int64_t count) {
  return result.seconds > 0 ? static_cast<double>(count) / result.seconds : 0.0;
}

std::string Row(absl::string_view name, const Distribution& d) {
  return absl::StrFormat(
      "%-14s %10.2f %10.2f %10.2f %10.2f %10.2f\n", name, d.mean, d.p50, d.p90, d.p99, d.max);
}

nlohmann::ordered_json ToJson(const Distribution& d) {
  return {{"count", d.count},
          {"mean", d.mean},
          {"p50", d.p50},
          {"p90", d.p90},
          {"p99", d.p99},
          {"max", d.max}};
}

nlohmann::ordered_json LoadJson(const BenchOptions& options) {
  nlohmann::ordered_json load = {{"requests", options.num_requests},
                                 {"warmup_requests", options.num_warmup_requests},
                                 {"input_tokens", options.input_tokens},
                                 {"output_tokens", options.output_tokens},
                                 {"spread", options.spread},
                                 {"shared_prefix_tokens", options.shared_prefix_tokens},
                                 {"channels", options.num_channels},
                                 {"threads", options.num_threads},
                                 {"seed", options.seed}};
  load["api"] = options.http ? options.http->api_name() : "grpc";
  if (options.is_open_loop()) {
    if (options.rate) load["rate_per_second"] = *options.rate;
    load["arrival"] = NameOf(options.arrival);
  } else {
    load["concurrency"] = options.concurrency;
  }
  if (!options.prompts.empty()) load["prompts"] = options.prompts.size();
  if (options.text) load["text_bytes"] = options.text->size();
  if (options.temperature) load["temperature"] = *options.temperature;
  return load;
}

// The limits and what kept them.
nlohmann::ordered_json GoodputJson(const LatencyLimits& limits, const BenchResult& result) {
  nlohmann::ordered_json goodput = {{"requests", result.num_good},
                                    {"requests_per_second", PerSecond(result, result.num_good)}};
  if (limits.ttft_ms) goodput["ttft_limit_ms"] = *limits.ttft_ms;
  if (limits.tpot_ms) goodput["tpot_limit_ms"] = *limits.tpot_ms;
  if (limits.e2e_ms) goodput["e2e_limit_ms"] = *limits.e2e_ms;
  return goodput;
}

}  // namespace

std::string DescribeLoad(const BenchOptions& options) {
  if (!options.is_open_loop()) return absl::StrFormat("%d at once", options.concurrency);
  if (!options.rate) return "all at once";
  return absl::StrFormat("%s at %.2f /s", NameOf(options.arrival), *options.rate);
}

std::string ReportTable(const BenchOptions& options, const BenchResult& result) {
  std::string text = absl::StrFormat("%-14s %d ok, %d failed in %.3f s, %.2f /s\n",
                                     "requests",
                                     result.num_ok,
                                     result.num_failed,
                                     result.seconds,
                                     PerSecond(result, result.num_ok));
  absl::StrAppendFormat(&text,
                        "%-14s %s, %.1f in flight on average\n",
                        "load",
                        DescribeLoad(options),
                        result.mean_concurrency);
  if (options.limits.any()) {
    absl::StrAppendFormat(&text,
                          "%-14s %d within the limits, %.2f /s\n",
                          "goodput",
                          result.num_good,
                          PerSecond(result, result.num_good));
  }
  absl::StrAppendFormat(&text,
                        "%-14s %d, %.1f /s, %d from the prefix cache\n",
                        "input tokens",
                        result.num_prompt_tokens,
                        PerSecond(result, result.num_prompt_tokens),
                        result.num_cached_tokens);
  absl::StrAppendFormat(&text,
                        "%-14s %d, %.1f /s\n\n",
                        "output tokens",
                        result.num_output_tokens,
                        PerSecond(result, result.num_output_tokens));
  absl::StrAppendFormat(
      &text, "%-14s %10s %10s %10s %10s %10s\n", "ms", "mean", "p50", "p90", "p99", "max");
  absl::StrAppend(&text,
                  Row("TTFT", result.ttft_ms),
                  Row("TPOT", result.tpot_ms),
                  Row("ITL", result.itl_ms),
                  Row("E2E", result.e2e_ms));
  for (const auto& [kind, count] : result.failures)
    absl::StrAppendFormat(&text, "error %s: %d\n", kind, count);
  if (result.num_short > 0) {
    absl::StrAppendFormat(
        &text, "note: %d answers ended before the tokens asked for\n", result.num_short);
  }
  for (const std::string& warning : ClientWarnings(result))
    absl::StrAppend(&text, "warning: ", warning, "\n");
  return text;
}

std::string ReportJson(const BenchOptions& options,
                       const v1::GetModelResponse& model,
                       const BenchResult& result) {
  nlohmann::ordered_json failures = nlohmann::ordered_json::object();
  for (const auto& [kind, count] : result.failures) failures[kind] = count;
  nlohmann::ordered_json report = {
      {"model",
       {{"name", model.served_names_size() > 0 ? model.served_names(0) : ""},
        {"architecture", model.architecture()},
        {"dtype", model.dtype()},
        {"device", model.device()},
        {"parameters", model.parameters()}}},
      {"load", LoadJson(options)},
      {"seconds", result.seconds},
      {"requests_ok", result.num_ok},
      {"requests_failed", result.num_failed},
      {"requests_short", result.num_short},
      {"failures", failures},
      {"mean_concurrency", result.mean_concurrency},
      {"input_tokens", result.num_prompt_tokens},
      {"cached_input_tokens", result.num_cached_tokens},
      {"output_tokens", result.num_output_tokens},
      {"requests_per_second", PerSecond(result, result.num_ok)},
      {"input_tokens_per_second", PerSecond(result, result.num_prompt_tokens)},
      {"output_tokens_per_second", PerSecond(result, result.num_output_tokens)},
      {"ttft_ms", ToJson(result.ttft_ms)},
      {"tpot_ms", ToJson(result.tpot_ms)},
      {"itl_ms", ToJson(result.itl_ms)},
      {"e2e_ms", ToJson(result.e2e_ms)},
      {"client",
       {{"busiest_thread", result.client.busiest_thread},
        {"late_ms", ToJson(result.late_ms)},
        {"warnings", ClientWarnings(result)}}}};
  if (options.limits.any()) report["goodput"] = GoodputJson(options.limits, result);
  return report.dump(2, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace) +
         "\n";
}

}  // namespace pagoda::daemon
