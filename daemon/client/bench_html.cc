#include "daemon/client/bench_html.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "daemon/client/bench_report.h"

namespace pagoda::daemon {
namespace {

// Of a plot, in pixels of its own.
constexpr double kWidth = 560, kHeight = 260, kLeft = 64, kRight = 12, kTop = 28, kBottom = 36;
// More points than pixels show nothing more.
constexpr size_t kMaxPoints = 500;
constexpr int kNumTicks = 5;

using Points = std::vector<std::pair<double, double>>;

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// The least of 1, 2, 2.5, 5 times a power of ten that is at least `value`.
double NiceMax(double value) {
  if (!(value > 0)) return 1;
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (value <= factor * power) return factor * power;
  }
  return 10 * power;
}

std::string Plot(absl::string_view title,
                 absl::string_view x_label,
                 absl::string_view y_label,
                 const Points& points,
                 bool is_line) {
  double x_max = 0, y_max = 0;
  for (const auto& [x, y] : points) {
    x_max = std::max(x_max, x);
    y_max = std::max(y_max, y);
  }
  x_max = NiceMax(x_max);
  y_max = NiceMax(y_max);
  const auto x_of = [&](double x) { return kLeft + x / x_max * (kWidth - kLeft - kRight); };
  const auto y_of = [&](double y) {
    return kHeight - kBottom - y / y_max * (kHeight - kTop - kBottom);
  };
  std::string svg = absl::StrFormat(
      "<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"%s\"><text x=\"%g\" y=\"18\" "
      "class=\"title\">%s</text>",
      kWidth,
      kHeight,
      Escaped(title),
      kLeft,
      Escaped(title));
  for (int i = 0; i <= kNumTicks; ++i) {
    const double x = x_max * i / kNumTicks, y = y_max * i / kNumTicks;
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
                          "<text x=\"%.1f\" y=\"%.1f\" class=\"y\">%g</text>"
                          "<text x=\"%.1f\" y=\"%.1f\" class=\"x\">%g</text>",
                          kLeft,
                          kWidth - kRight,
                          y_of(y),
                          y_of(y),
                          kLeft - 6,
                          y_of(y) + 4,
                          y,
                          x_of(x),
                          kHeight - kBottom + 16,
                          x);
  }
  absl::StrAppendFormat(&svg,
                        "<text x=\"%g\" y=\"%g\" class=\"x\">%s</text><text x=\"%g\" y=\"%g\" "
                        "class=\"y\">%s</text>",
                        (kLeft + kWidth - kRight) / 2,
                        kHeight - 4,
                        Escaped(x_label),
                        kLeft - 6,
                        kTop - 8,
                        Escaped(y_label));
  if (is_line) {
    svg += "<polyline points=\"";
    for (const auto& [x, y] : points) absl::StrAppendFormat(&svg, "%.1f,%.1f ", x_of(x), y_of(y));
    svg += "\"/>";
  } else {
    for (const auto& [x, y] : points)
      absl::StrAppendFormat(&svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2\"/>", x_of(x), y_of(y));
  }
  return svg + "</svg>\n";
}

// Percent of the values that are at most x.
Points Cumulative(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  Points points;
  const size_t stride = std::max<size_t>(1, values.size() / kMaxPoints);
  for (size_t i = 0; i < values.size(); i += stride) {
    points.emplace_back(values[i],
                        100.0 * static_cast<double>(i + 1) / static_cast<double>(values.size()));
  }
  if (!values.empty()) points.emplace_back(values.back(), 100.0);
  return points;
}

struct Series {
  std::vector<double> ttft, tpot, itl, e2e;
  Points ttft_over_time, tokens_over_time;
};

Series SeriesOf(const BenchResult& result, const std::vector<RequestOutcome>& outcomes) {
  Series series;
  int64_t start_ns = INT64_MAX;
  for (const RequestOutcome& outcome : outcomes) start_ns = std::min(start_ns, outcome.due_ns);
  const double bin_seconds = std::max(result.seconds / 100, 1e-3);
  std::vector<double> tokens(static_cast<size_t>(result.seconds / bin_seconds) + 2, 0.0);
  const size_t stride = std::max<size_t>(1, outcomes.size() / kMaxPoints);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const RequestOutcome& outcome = outcomes[i];
    if (outcome.first_ns != 0) {
      // Messages that held tokens; what one held is its share.
      const double share = static_cast<double>(outcome.num_output_tokens) /
                           static_cast<double>(outcome.gaps_ms.size() + 1);
      double seconds = static_cast<double>(outcome.first_ns - start_ns) * 1e-9;
      const auto count = [&] {
        const size_t bin = static_cast<size_t>(std::max(0.0, seconds / bin_seconds));
        tokens[std::min(bin, tokens.size() - 1)] += share;
      };
      count();
      for (const float gap_ms : outcome.gaps_ms) {
        seconds += static_cast<double>(gap_ms) * 1e-3;
        count();
      }
    }
    if (!outcome.failure.empty()) continue;
    series.e2e.push_back(E2eMs(outcome));
    series.itl.insert(series.itl.end(), outcome.gaps_ms.begin(), outcome.gaps_ms.end());
    if (const auto ms = TpotMs(outcome)) series.tpot.push_back(*ms);
    if (const auto ms = TtftMs(outcome)) {
      series.ttft.push_back(*ms);
      if (i % stride == 0) {
        series.ttft_over_time.emplace_back(static_cast<double>(outcome.due_ns - start_ns) * 1e-9,
                                           *ms);
      }
    }
  }
  for (size_t bin = 0; bin < tokens.size(); ++bin) {
    series.tokens_over_time.emplace_back(static_cast<double>(bin) * bin_seconds,
                                         tokens[bin] / bin_seconds);
  }
  return series;
}

constexpr char kHead[] = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>pagoda bench</title><style>
body { font: 14px/1.45 system-ui, sans-serif; margin: 24px auto; max-width: 1180px; padding: 0 16px; color: #1c2330; }
pre { background: #f4f6f9; padding: 12px; overflow-x: auto; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 16px; }
svg { width: 100%; height: auto; border: 1px solid #dde3ea; }
svg line { stroke: #e6eaf0; } svg polyline { fill: none; stroke: #2459c4; stroke-width: 1.5; } svg circle { fill: #2459c4; fill-opacity: .6; }
svg text { font-size: 11px; fill: #4a5568; } svg .title { font-size: 13px; font-weight: 600; fill: #1c2330; }
svg .x { text-anchor: middle; } svg .y { text-anchor: end; }
</style></head><body>
)";

}  // namespace

std::string ReportHtml(const BenchOptions& options,
                       const v1::GetModelResponse& model,
                       const BenchResult& result,
                       const std::vector<RequestOutcome>& outcomes) {
  const std::string name = model.served_names_size() > 0 ? model.served_names(0) : "";
  const Series series = SeriesOf(result, outcomes);
  return absl::StrCat(
      kHead,
      "<h1>",
      Escaped(name),
      "</h1>\n<p>",
      Escaped(absl::StrCat(model.architecture(), ", ", model.dtype(), " on ", model.device())),
      "</p>\n<pre>",
      Escaped(ReportTable(options, result)),
      "</pre>\n<main>\n",
      Plot("Output tokens a second", "s", "tokens/s", series.tokens_over_time, true),
      Plot("TTFT over time", "s", "ms", series.ttft_over_time, false),
      Plot("TTFT", "ms", "%", Cumulative(series.ttft), true),
      Plot("TPOT", "ms", "%", Cumulative(series.tpot), true),
      Plot("Inter-token latency", "ms", "%", Cumulative(series.itl), true),
      Plot("End to end", "ms", "%", Cumulative(series.e2e), true),
      "</main></body></html>\n");
}

}  // namespace pagoda::daemon
