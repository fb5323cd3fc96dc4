#include "daemon/client/bench_compare.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pagoda::daemon {
namespace {

using nlohmann::json;

// Figures in the order of the table, as JSON pointers.
struct Figure {
  const char* name;
  const char* pointer;
};
constexpr Figure kFigures[] = {
    {"requests ok", "/requests_ok"},
    {"requests failed", "/requests_failed"},
    {"requests/s", "/requests_per_second"},
    {"goodput/s", "/goodput/requests_per_second"},
    {"input tokens/s", "/input_tokens_per_second"},
    {"output tokens/s", "/output_tokens_per_second"},
    {"TTFT p50 ms", "/ttft_ms/p50"},
    {"TTFT p90 ms", "/ttft_ms/p90"},
    {"TTFT p99 ms", "/ttft_ms/p99"},
    {"TPOT p50 ms", "/tpot_ms/p50"},
    {"TPOT p90 ms", "/tpot_ms/p90"},
    {"TPOT p99 ms", "/tpot_ms/p99"},
    {"ITL p50 ms", "/itl_ms/p50"},
    {"ITL p99 ms", "/itl_ms/p99"},
    {"E2E p50 ms", "/e2e_ms/p50"},
    {"E2E p99 ms", "/e2e_ms/p99"},
};

absl::StatusOr<json> Parse(const std::string& file, const std::string& text) {
  json report = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!report.is_object() || !report.contains("load") || !report["load"].is_object() ||
      !report.contains("ttft_ms")) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": expected a report that `pagoda bench --json` wrote"));
  }
  return report;
}

std::string Differences(const json& first, const json& second) {
  std::string text;
  const auto differ = [&text](const std::string& name, const json& a, const json& b) {
    absl::StrAppend(&text, "differs: ", name, ": ", a.dump(), " and ", b.dump(), "\n");
  };
  for (const auto& [name, value] : first.items()) {
    if (name == "seed") continue;
    if (!second.contains(name)) {
      differ(name, value, nullptr);
    } else if (second[name] != value) {
      differ(name, value, second[name]);
    }
  }
  for (const auto& [name, value] : second.items()) {
    if (name != "seed" && !first.contains(name)) differ(name, nullptr, value);
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> CompareReports(const std::string& first_file,
                                           const std::string& first,
                                           const std::string& second_file,
                                           const std::string& second) {
  const absl::StatusOr<json> a = Parse(first_file, first);
  if (!a.ok()) return a.status();
  const absl::StatusOr<json> b = Parse(second_file, second);
  if (!b.ok()) return b.status();
  std::string text = Differences((*a)["load"], (*b)["load"]);
  const json no_model = json::object();
  absl::StrAppend(&text, Differences(a->value("model", no_model), b->value("model", no_model)));
  absl::StrAppendFormat(&text, "%-16s %14s %14s %10s\n", "", first_file, second_file, "change");
  for (const Figure& figure : kFigures) {
    const json::json_pointer pointer(figure.pointer);
    if (!a->contains(pointer) || !b->contains(pointer)) continue;
    const json& was = a->at(pointer);
    const json& is = b->at(pointer);
    if (!was.is_number() || !is.is_number()) continue;
    const double before = was.get<double>(), after = is.get<double>();
    absl::StrAppendFormat(&text, "%-16s %14.2f %14.2f", figure.name, before, after);
    if (before != 0) absl::StrAppendFormat(&text, " %+9.1f%%", (after / before - 1) * 100);
    text += "\n";
  }
  return text;
}

}  // namespace pagoda::daemon
