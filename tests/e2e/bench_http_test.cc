// `pagoda bench --url` against the daemon's own HTTP port, as against any other server of OpenAI's
// API.

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/test_daemon.h"
#include "tests/fixtures/model_files.h"

namespace pagoda::e2e::bench_http_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class BenchHttp : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto daemon = TestDaemon::Start({.flags = {"--device=sim",
                                               "--sim-base-us=2000",
                                               "--sim-per-token-us=0",
                                               "--max-num-seqs=8",
                                               "--max-waiting-requests=8"},
                                     .with_http = true});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = daemon->release();
  }
  static void TearDownTestSuite() { delete daemon_; }

  static std::string Url() { return absl::StrCat("--url=http://127.0.0.1:", daemon_->http_port()); }
  CommandResult Bench(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"bench", Url(), "--json=" + Path("report.json"), "--seed=5"});
    return RunPagoda(flags);
  }
  json Report() {
    std::ifstream in(Path("report.json"));
    return json::parse(in, nullptr, /*allow_exceptions=*/false);
  }
  std::string Path(const char* name) { return absl::StrCat(dir_.path(), "/", name); }

  static TestDaemon* daemon_;
  fixtures::TemporaryDir dir_;
};

TestDaemon* BenchHttp::daemon_ = nullptr;

TEST_F(BenchHttp, CompletionsInAClosedLoop) {
  const CommandResult result = Bench({"--requests=20",
                                      "--concurrency=4",
                                      "--input-tokens=30",
                                      "--output-tokens=10",
                                      "--threads=2",
                                      "--report=" + Path("report.html")});
  ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
  const json report = Report();
  EXPECT_EQ(report["requests_ok"], 20);
  EXPECT_EQ(report["requests_short"], 0);
  EXPECT_EQ(report["output_tokens"], 200);
  EXPECT_GE(report["input_tokens"], 20 * 25);
  EXPECT_EQ(report["load"]["api"], "openai-completions");
  EXPECT_EQ(report["model"]["name"], "fable-7m");
  EXPECT_GT(report["ttft_ms"]["p50"], 1.0);
  // One step a token.
  EXPECT_GT(report["tpot_ms"]["p50"], 1.8);
  EXPECT_LT(report["tpot_ms"]["p50"], 20.0);
  EXPECT_EQ(report["e2e_ms"]["count"], 20);
  // The daemon saw what the report says, and the warm-up.
  EXPECT_EQ(daemon_->Metric("pagoda_requests_received_total{model=\"fable-7m\",api=\"http\"}")
                .value_or(0),
            24);
  std::ifstream html(Path("report.html"));
  std::ostringstream page;
  page << html.rdbuf();
  EXPECT_THAT(page.str(), HasSubstr("<svg"));
  EXPECT_FALSE(absl::StrContains(page.str(), "src=\"http"));
}

TEST_F(BenchHttp, ChatsInAnOpenLoopWithLimits) {
  const CommandResult result = Bench({"--api=chat",
                                      "--requests=10",
                                      "--rate=50",
                                      "--arrival=fixed",
                                      "--output-tokens=5",
                                      "--limit-e2e-ms=10000"});
  ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
  const json report = Report();
  EXPECT_EQ(report["requests_ok"], 10);
  EXPECT_EQ(report["output_tokens"], 50);
  EXPECT_EQ(report["load"]["api"], "openai-chat");
  EXPECT_EQ(report["goodput"]["requests"], 10);
  EXPECT_GT(report["seconds"], 0.17);
}

TEST_F(BenchHttp, RecordedConversationsHaveTheLengthOfTheirAnswers) {
  std::ofstream(Path("sharegpt.json")) << R"([{"conversations": [{"from": "human", "value": "Hi"},
                                {"from": "gpt", "value": "Once upon a time there was a fox."}]}])";
  const CommandResult result =
      Bench({"--requests=3", "--warmup=0", "--prompts=" + Path("sharegpt.json")});
  ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
  const json report = Report();
  EXPECT_EQ(report["requests_ok"], 3);
  const int each = report["output_tokens"].get<int>() / 3;
  EXPECT_GT(each, 5);
  EXPECT_LT(each, 34);
}

TEST_F(BenchHttp, ErrorsAreCountedByKind) {
  // Eight wait, or more where some of them run already when the last come; the others are refused.
  const CommandResult result = Bench(
      {"--requests=40", "--arrival=at-once", "--warmup=0", "--output-tokens=100", "--threads=1"});
  EXPECT_EQ(result.exit_code, 1) << result.err << result.out;
  const json report = Report();
  EXPECT_GE(report["requests_ok"], 8);
  EXPECT_EQ(report["requests_ok"].get<int>() + report["requests_failed"].get<int>(), 40);
  for (const auto& [kind, count] : report["failures"].items()) EXPECT_THAT(kind, HasSubstr("429"));
  EXPECT_THAT(result.out, HasSubstr("error HTTP 429"));
  const CommandResult unknown = Bench({"--model=nobody", "--requests=2", "--warmup=0"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_EQ(Report()["failures"]["HTTP 404/model_not_found"], 2);
}

TEST_F(BenchHttp, NobodyThere) {
  const CommandResult result = RunPagoda({"bench", "--url=http://127.0.0.1:1"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("127.0.0.1:1: Connection refused"));
  EXPECT_EQ(RunPagoda({"bench", "--url=https://127.0.0.1"}).exit_code, 2);
  EXPECT_EQ(RunPagoda({"bench", "--api=chat"}).exit_code, 2);
}

TEST_F(BenchHttp, CompareTellsTheApisApart) {
  ASSERT_EQ(Bench({"--requests=2", "--output-tokens=2"}).exit_code, 0);
  ASSERT_EQ(RunPagoda({"bench",
                       "--address=" + daemon_->grpc_address(),
                       "--requests=2",
                       "--output-tokens=2",
                       "--json=" + Path("b.json")})
                .exit_code,
            0);
  const CommandResult result =
      RunPagoda({"bench", "--compare", Path("report.json"), Path("b.json")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("differs: api: \"openai-completions\" and \"grpc\""));
  EXPECT_THAT(result.out, HasSubstr("TTFT p50 ms"));
}

}  // namespace
}  // namespace pagoda::e2e::bench_http_test
