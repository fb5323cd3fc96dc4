#include "daemon/client/bench_http_plan.h"

#include <set>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

using nlohmann::json;

BenchOptions Options(const char* url) {
  BenchOptions options = {.model = "m", .input_tokens = 40, .output_tokens = 7, .seed = 3};
  options.http = *ParseHttpTarget(url);
  return options;
}

TEST(BenchHttpPlanTest, CompletionsAskForAStreamOfTheLengthWithUsage) {
  const BenchOptions options = Options("http://127.0.0.1:8000");
  const PlannedHttpRequest planned = PlanHttpRequest(options, 5);
  EXPECT_EQ(planned.route, "/v1/completions");
  EXPECT_EQ(planned.output_tokens, 7);
  const json body = json::parse(planned.body);
  EXPECT_EQ(body["model"], "m");
  EXPECT_EQ(body["max_tokens"], 7);
  EXPECT_EQ(body["stream"], true);
  EXPECT_EQ(body["ignore_eos"], true);
  EXPECT_EQ(body["stream_options"]["include_usage"], true);
  EXPECT_FALSE(body.contains("temperature"));
  const std::string prompt = body["prompt"];
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(prompt, ' ')).size(), 40u);
  EXPECT_EQ(PlanHttpRequest(options, 5).body, planned.body);
}

TEST(BenchHttpPlanTest, ChatsCarryThePromptAsAMessage) {
  BenchOptions options = Options("http://localhost:1/base/");
  options.http->api = HttpTarget::Api::kChat;
  options.text = "Hello";
  options.temperature = 0.5f;
  const PlannedHttpRequest planned = PlanHttpRequest(options, 0);
  EXPECT_EQ(planned.route, "/base/chat/completions");
  const json body = json::parse(planned.body);
  EXPECT_EQ(body["messages"], json::parse(R"([{"role": "user", "content": "Hello"}])"));
  EXPECT_EQ(body["temperature"], 0.5);
}

TEST(BenchHttpPlanTest, PromptsShareTheirPrefixAndNothingElse) {
  BenchOptions options = Options("http://127.0.0.1:8000/v1");
  options.shared_prefix_tokens = 30;
  std::set<std::string> prefixes, rests;
  for (int64_t i = 0; i < 200; ++i) {
    const std::string prompt = json::parse(PlanHttpRequest(options, i).body)["prompt"];
    const std::vector<std::string> words = absl::StrSplit(prompt, ' ');
    ASSERT_EQ(words.size(), 40u);
    prefixes.insert(absl::StrJoin(words.begin(), words.begin() + 30, " "));
    rests.insert(absl::StrJoin(words.begin() + 30, words.end(), " "));
  }
  EXPECT_EQ(prefixes.size(), 1u);
  EXPECT_EQ(rests.size(), 200u);
}

TEST(HttpTargetTest, UrlsThatCannotBe) {
  for (const char* url : {"", "127.0.0.1:8000", "ftp://a", "https://a", "http://", "http://:80"}) {
    const auto target = ParseHttpTarget(url);
    ASSERT_FALSE(target.ok()) << url;
    EXPECT_TRUE(absl::StrContains(target.status().message(), "expected http://HOST")) << url;
  }
  const auto six = ParseHttpTarget("http://[::1]:8000/v1/");
  ASSERT_TRUE(six.ok()) << six.status();
  EXPECT_EQ(six->host, "[::1]:8000");
  EXPECT_EQ(six->path, "/v1");
  EXPECT_EQ(six->address.ss_family, AF_INET6);
}

TEST(HttpTargetTest, RequestsHoldTheKeyAndTheLength) {
  HttpTarget target = {.host = "h:1", .path = "/v1", .api_key = "k"};
  EXPECT_EQ(HttpRequestText(target, "/v1/models", ""),
            "GET /v1/models HTTP/1.1\r\nHost: h:1\r\nAuthorization: Bearer k\r\n\r\n");
  EXPECT_TRUE(absl::EndsWith(HttpRequestText(target, "/x", "{}"), "Content-Length: 2\r\n\r\n{}"));
}

}  // namespace
}  // namespace pagoda::daemon
