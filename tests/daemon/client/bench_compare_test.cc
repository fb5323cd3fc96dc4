#include "daemon/client/bench_compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pagoda::daemon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kFirst[] =
    R"({"model": {"name": "m"}, "load": {"requests": 10, "seed": 1, "concurrency": 4},
  "requests_ok": 10, "requests_failed": 0, "output_tokens_per_second": 200.0,
  "ttft_ms": {"p50": 10.0, "p99": 40.0}})";
constexpr char kSecond[] =
    R"({"model": {"name": "m"}, "load": {"requests": 10, "seed": 2, "rate_per_second": 3},
  "requests_ok": 9, "requests_failed": 1, "output_tokens_per_second": 250.0,
  "ttft_ms": {"p50": 5.0, "p99": 40.0}, "goodput": {"requests_per_second": 1}})";

TEST(CompareReports, FiguresOfBothAndTheChange) {
  const auto table = CompareReports("a", kFirst, "b", kSecond);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table,
              AllOf(HasSubstr("output tokens/s          200.00         250.00     +25.0%"),
                    HasSubstr("TTFT p50 ms               10.00           5.00     -50.0%"),
                    HasSubstr("TTFT p99 ms               40.00          40.00      +0.0%"),
                    HasSubstr("requests failed            0.00           1.00\n")));
  // What only one has is not compared.
  EXPECT_THAT(*table, Not(HasSubstr("goodput")));
}

TEST(CompareReports, SaysInWhatTheLoadsDiffer) {
  EXPECT_THAT(*CompareReports("a", kFirst, "b", kSecond),
              AllOf(HasSubstr("differs: concurrency: 4 and null"),
                    HasSubstr("differs: rate_per_second: null and 3"),
                    Not(HasSubstr("seed"))));
  EXPECT_THAT(*CompareReports("a", kFirst, "b", kFirst), Not(HasSubstr("differs")));
}

TEST(CompareReports, NamesTheFileThatIsNoReport) {
  for (const char* text : {"", "[]", "{}", "{\"load\": 1, \"ttft_ms\": {}}", "{\"load\": {}}"}) {
    const auto table = CompareReports("a", kFirst, "b.json", text);
    EXPECT_THAT(std::string(table.status().message()), HasSubstr("b.json: expected a report"))
        << text;
  }
  // Figures of another type are left out.
  EXPECT_TRUE(CompareReports("a", kFirst, "b", R"({"load": {}, "ttft_ms": "x"})").ok());
}

}  // namespace
}  // namespace pagoda::daemon
