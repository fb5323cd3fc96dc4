#include "daemon/client/bench_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pagoda::daemon {
namespace {

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
  if (options.rate) {
    load["rate_per_second"] = *options.rate;
    load["arrival"] = options.poisson ? "poisson" : "fixed";
  } else {
    load["concurrency"] = options.concurrency;
  }
  if (options.text) load["text_bytes"] = options.text->size();
  if (options.temperature) load["temperature"] = *options.temperature;
  return load;
}

}  // namespace

std::string ReportTable(const BenchOptions& options, const BenchResult& result) {
  std::string text = absl::StrFormat("%-14s %d ok, %d failed in %.3f s, %.2f /s\n",
                                     "requests",
                                     result.num_ok,
                                     result.num_failed,
                                     result.seconds,
                                     PerSecond(result, result.num_ok));
  if (options.rate) {
    absl::StrAppendFormat(
        &text, "%-14s %s at %.2f /s", "load", options.poisson ? "poisson" : "fixed", *options.rate);
  } else {
    absl::StrAppendFormat(&text, "%-14s %d at once", "load", options.concurrency);
  }
  absl::StrAppendFormat(&text, ", %.1f in flight on average\n", result.mean_concurrency);
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
  const nlohmann::ordered_json report = {
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
  return report.dump(2, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace) +
         "\n";
}

}  // namespace pagoda::daemon
