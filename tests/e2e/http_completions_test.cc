// /v1/completions and the small routes, as clients of OpenAI's API read them.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/http_client.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e::http_completions_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kPath[] = "/v1/completions";
constexpr char kPrompt[] = "Once upon a time";

class HttpCompletions : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto daemon = TestDaemon::Start({.flags = {"--kv-cache-memory=64MiB"}, .with_http = true});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = daemon->release();
  }
  static void TearDownTestSuite() { delete daemon_; }

  static int port() { return daemon_->http_port(); }
  static json Greedy(json more = json::object()) {
    json body = {{"model", "fable-7m"},
                 {"prompt", kPrompt},
                 {"max_tokens", 24},
                 {"temperature", 0},
                 {"ignore_eos", true}};
    body.update(more);
    return body;
  }
  // The body of a completion that must succeed.
  static json Complete(const json& body) {
    const HttpResponse response = HttpPost(port(), kPath, body);
    EXPECT_EQ(response.status, 200) << response.body;
    return response.Json();
  }
  static std::string TextOf(const json& body) { return Complete(body)["choices"][0]["text"]; }

  static TestDaemon* daemon_;
};

TestDaemon* HttpCompletions::daemon_ = nullptr;

TEST_F(HttpCompletions, IsWhatGrpcSays) {
  const json reply = Complete(Greedy());
  v1::GenerateRequest request = TextRequest(kPrompt, 24);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_ignore_eos(true);
  const CallResult expected = Generate(daemon_->stub(), request);
  ASSERT_TRUE(expected.status.ok());
  EXPECT_TRUE(absl::StartsWith(reply["id"].get<std::string>(), "cmpl-"));
  EXPECT_EQ(reply["object"], "text_completion");
  EXPECT_EQ(reply["model"], "fable-7m");
  EXPECT_NEAR(
      reply["created"].get<double>(), static_cast<double>(absl::ToUnixSeconds(absl::Now())), 60);
  ASSERT_EQ(reply["choices"].size(), 1u);
  const json& choice = reply["choices"][0];
  EXPECT_EQ(choice["text"], expected.first().text);
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_EQ(reply["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(reply["usage"]["completion_tokens"], 24);
  EXPECT_EQ(reply["usage"]["total_tokens"], 28);
  EXPECT_TRUE(reply["usage"]["prompt_tokens_details"]["cached_tokens"].is_number());
}

TEST_F(HttpCompletions, DefaultsToSixteenTokens) {
  json body = Greedy();
  body.erase("max_tokens");
  EXPECT_EQ(Complete(body)["usage"]["completion_tokens"], 16);
}

TEST_F(HttpCompletions, PromptsOfEveryKind) {
  const std::string text = TextOf(Greedy());
  const json ids = {3777, 663, 259, 562};
  EXPECT_EQ(TextOf(Greedy({{"prompt", ids}})), text);
  const json two = Complete(Greedy({{"prompt", {kPrompt, "The king said"}}}));
  ASSERT_EQ(two["choices"].size(), 2u);
  EXPECT_EQ(two["choices"][0]["text"], text);
  EXPECT_EQ(two["choices"][1]["index"], 1);
  EXPECT_EQ(two["choices"][1]["text"], TextOf(Greedy({{"prompt", "The king said"}})));
  EXPECT_EQ(two["usage"]["completion_tokens"], 48);
  const json lists = Complete(Greedy({{"prompt", json::array({ids, ids})}, {"n", 2}}));
  ASSERT_EQ(lists["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(lists["choices"][i]["index"], i);
    EXPECT_EQ(lists["choices"][i]["text"], text);
  }
  // Each prompt counts once, however many answers it has.
  EXPECT_EQ(lists["usage"]["prompt_tokens"], 8);
  EXPECT_EQ(lists["usage"]["completion_tokens"], 96);
}

TEST_F(HttpCompletions, StreamAddsUpToTheWhole) {
  const std::string text = TextOf(Greedy());
  const auto events = HttpStream(port(), kPath, Greedy());
  std::string streamed;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["id"], events[0]["id"]);
    EXPECT_EQ(events[i]["created"], events[0]["created"]);
    EXPECT_EQ(events[i]["object"], "text_completion");
    EXPECT_FALSE(events[i].contains("usage"));
    ASSERT_EQ(events[i]["choices"].size(), 1u);
    const json& choice = events[i]["choices"][0];
    streamed += choice["text"];
    ASSERT_TRUE(choice.contains("finish_reason"));
    const bool last = i + 1 == events.size();
    EXPECT_EQ(choice["finish_reason"], last ? json("length") : json());
    if (last) {
      EXPECT_EQ(choice["text"], "");
    }
  }
  EXPECT_GT(events.size(), 3u);
  EXPECT_EQ(streamed, text);
}

TEST_F(HttpCompletions, UsageOfAStream) {
  const json options = {{"include_usage", true}};
  const auto events =
      HttpStream(port(), kPath, Greedy({{"stream_options", options}, {"n", 2}, {"seed", 3}}));
  ASSERT_GT(events.size(), 2u);
  for (size_t i = 0; i + 1 < events.size(); ++i) EXPECT_TRUE(events[i].at("usage").is_null());
  EXPECT_EQ(events.back()["choices"], json::array());
  EXPECT_EQ(events.back()["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 48);
  EXPECT_EQ(events.back()["usage"]["total_tokens"], 52);
  const auto each = HttpStream(
      port(),
      kPath,
      Greedy({{"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}}));
  EXPECT_EQ(each[each.size() - 2]["usage"]["completion_tokens"], 24);
}

TEST_F(HttpCompletions, ChoicesOfAStreamInterleave) {
  const json body = Greedy({{"n", 3}, {"temperature", 1}, {"seed", 5}});
  const json whole = Complete(body);
  std::vector<std::string> texts(3);
  std::vector<int> ends(3);
  for (const json& event : HttpStream(port(), kPath, body)) {
    ASSERT_EQ(event["choices"].size(), 1u);
    const json& choice = event["choices"][0];
    const auto index = choice["index"].get<size_t>();
    texts.at(index) += choice["text"];
    ends.at(index) += choice["finish_reason"].is_null() ? 0 : 1;
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(texts[i], whole["choices"][i]["text"]);
  EXPECT_EQ(ends, (std::vector<int>{1, 1, 1}));
  EXPECT_NE(texts[0], texts[1]);
}

// Every token's text stands at its offset.
void ExpectOffsets(const json& logprobs, const std::string& text) {
  ASSERT_EQ(logprobs["text_offset"].size(), logprobs["tokens"].size());
  for (size_t i = 0; i < logprobs["tokens"].size(); ++i) {
    const std::string token = logprobs["tokens"][i];
    EXPECT_EQ(text.substr(logprobs["text_offset"][i].get<size_t>(), token.size()), token);
  }
}

TEST_F(HttpCompletions, Logprobs) {
  const json choice = Complete(Greedy({{"logprobs", 2}}))["choices"][0];
  const json& logprobs = choice["logprobs"];
  ASSERT_EQ(logprobs["tokens"].size(), 24u);
  ExpectOffsets(logprobs, choice["text"]);
  for (size_t i = 0; i < 24; ++i) {
    const double best = logprobs["token_logprobs"][i];
    EXPECT_LE(best, 0);
    EXPECT_GE(logprobs["top_logprobs"][i].size(), 1u);
    EXPECT_EQ(logprobs["top_logprobs"][i][logprobs["tokens"][i].get<std::string>()], best);
  }
  json streamed = {{"tokens", json::array()}, {"text_offset", json::array()}};
  for (const json& event : HttpStream(port(), kPath, Greedy({{"logprobs", 2}}))) {
    const json& part = event["choices"][0]["logprobs"];
    if (part.is_null()) continue;
    for (const char* name : {"tokens", "text_offset"})
      streamed[name].insert(streamed[name].end(), part[name].begin(), part[name].end());
  }
  EXPECT_EQ(streamed["tokens"], logprobs["tokens"]);
  EXPECT_EQ(streamed["text_offset"], logprobs["text_offset"]);
}

TEST_F(HttpCompletions, EchoHasThePromptsLogprobs) {
  const json body = Greedy({{"echo", true}, {"logprobs", 0}, {"max_tokens", 3}});
  const json choice = Complete(body)["choices"][0];
  EXPECT_TRUE(absl::StartsWith(choice["text"].get<std::string>(), kPrompt));
  const json& logprobs = choice["logprobs"];
  ASSERT_EQ(logprobs["tokens"].size(), 7u);
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["token_logprobs"][1].is_number());
  ExpectOffsets(logprobs, choice["text"]);
  // A prompt is scored so, without an answer.
  const json scored = Complete(Greedy({{"echo", true}, {"logprobs", 0}, {"max_tokens", 0}}));
  EXPECT_EQ(scored["choices"][0]["text"], kPrompt);
  EXPECT_EQ(scored["choices"][0]["logprobs"]["tokens"].size(), 4u);
  EXPECT_EQ(scored["usage"]["completion_tokens"], 0);
}

TEST_F(HttpCompletions, StopStrings) {
  const std::string text = TextOf(Greedy());
  const std::string stop = text.substr(20, 6);
  const size_t at = text.find(stop);
  const json body = Greedy({{"stop", {"never said", stop}}, {"logprobs", 0}});
  const json choice = Complete(body)["choices"][0];
  EXPECT_EQ(choice["text"], text.substr(0, at));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], stop);
  // Tokens that begin inside the stop string are not the text's.
  EXPECT_LT(choice["logprobs"]["text_offset"].back().get<size_t>(), at);
  size_t num_tokens = 0;
  std::string streamed;
  for (const json& event : HttpStream(port(), kPath, body)) {
    streamed += event["choices"][0]["text"];
    const json& part = event["choices"][0]["logprobs"];
    if (!part.is_null()) num_tokens += part["tokens"].size();
  }
  EXPECT_EQ(streamed, text.substr(0, at));
  EXPECT_EQ(num_tokens, choice["logprobs"]["tokens"].size());
  const json with = Complete(Greedy({{"stop", stop}, {"include_stop_str_in_output", true}}));
  EXPECT_EQ(with["choices"][0]["text"], text.substr(0, at + stop.size()));
}

TEST_F(HttpCompletions, Extras) {
  const json reply = Complete(Greedy({{"return_token_ids", true}, {"prompt_logprobs", 1}}));
  EXPECT_EQ(reply["choices"][0]["token_ids"].size(), 24u);
  EXPECT_EQ(reply["choices"][0]["prompt_logprobs"].size(), 4u);
  // What nobody knows is ignored.
  EXPECT_EQ(TextOf(Greedy({{"user", "u"}, {"store", false}, {"metadata", {{"a", 1}}}})),
            TextOf(Greedy()));
  EXPECT_EQ(TextOf(Greedy({{"guided_choice", {"yes", "no"}}})).substr(0, 1).find_first_of("yn"),
            0u);
}

TEST_F(HttpCompletions, Models) {
  const HttpResponse list = HttpGet(port(), "/v1/models");
  EXPECT_EQ(list.status, 200);
  EXPECT_EQ(list.Json()["object"], "list");
  const json model = list.Json()["data"][0];
  EXPECT_EQ(model["id"], "fable-7m");
  EXPECT_EQ(model["object"], "model");
  EXPECT_EQ(model["max_model_len"], 2048);
  EXPECT_EQ(HttpGet(port(), "/v1/models/fable-7m").Json(), model);
  const HttpResponse unknown = HttpGet(port(), "/v1/models/gpt-4");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.Error("code"), "model_not_found");
}

TEST_F(HttpCompletions, TokenizeAndBack) {
  const json ids = HttpPost(port(), "/tokenize", {{"prompt", kPrompt}}).Json();
  EXPECT_EQ(ids["tokens"], (json{3777, 663, 259, 562}));
  EXPECT_EQ(ids["count"], 4);
  EXPECT_EQ(ids["max_model_len"], 2048);
  EXPECT_EQ(HttpPost(port(), "/detokenize", {{"tokens", ids["tokens"]}}).Json()["prompt"], kPrompt);
  const json messages = json::array({{{"role", "user"}, {"content", kPrompt}}});
  EXPECT_EQ(HttpPost(port(), "/tokenize", {{"messages", messages}}).Json()["tokens"],
            ids["tokens"]);
}

TEST_F(HttpCompletions, SmallRoutes) {
  EXPECT_EQ(HttpGet(port(), "/health").status, 200);
  EXPECT_EQ(HttpGet(port(), "/health").body, "");
  EXPECT_EQ(HttpGet(port(), "/ping").status, 200);
  EXPECT_TRUE(HttpGet(port(), "/version").Json()["version"].is_string());
  Complete(Greedy());
  EXPECT_THAT(HttpGet(port(), "/metrics").body,
              HasSubstr("pagoda_requests_finished_total{model=\"fable-7m\",api=\"http\","));
  EXPECT_EQ(HttpPost(port(), "/v1/embeddings", {{"input", "a"}}).status, 501);
}

}  // namespace
}  // namespace pagoda::e2e::http_completions_test
