#include "daemon/client/bench_html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pagoda::daemon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string PageOf(const std::vector<RequestOutcome>& outcomes, const std::string& name) {
  v1::GetModelResponse model;
  model.add_served_names(name);
  const BenchOptions options;
  return ReportHtml(options, model, Aggregate(outcomes, {}), outcomes);
}

TEST(ReportHtml, HasThePlotsAndLoadsNothing) {
  std::vector<RequestOutcome> outcomes;
  for (int64_t i = 0; i < 2000; ++i) {
    const int64_t start = i * 1'000'000;
    outcomes.push_back({.due_ns = start,
                        .sent_ns = start,
                        .first_ns = start + 5'000'000,
                        .last_ns = start + 9'000'000,
                        .end_ns = start + 9'500'000,
                        .num_output_tokens = 3,
                        .gaps_ms = {2, 2}});
  }
  const std::string page = PageOf(outcomes, "model");
  EXPECT_THAT(page,
              AllOf(HasSubstr("<h1>model</h1>"),
                    HasSubstr("aria-label=\"TTFT\""),
                    HasSubstr("aria-label=\"Output tokens a second\""),
                    HasSubstr("<polyline points=\""),
                    HasSubstr("2000 ok, 0 failed"),
                    Not(HasSubstr("http")),
                    Not(HasSubstr("src=")),
                    Not(HasSubstr("nan")),
                    Not(HasSubstr("inf"))));
  // As many points as can be told apart, however many requests.
  EXPECT_LT(page.size(), 100'000u);
}

TEST(ReportHtml, NamesAreEscapedAndNothingToPlotIsNoFault) {
  const std::string page = PageOf({}, "<script>\"&");
  EXPECT_THAT(page,
              AllOf(HasSubstr("&lt;script&gt;&quot;&amp;"),
                    Not(HasSubstr("<script>")),
                    Not(HasSubstr("nan")),
                    Not(HasSubstr("inf"))));
  PageOf({{.failure = "UNAVAILABLE", .end_ns = 5}}, "m");
}

}  // namespace
}  // namespace pagoda::daemon
