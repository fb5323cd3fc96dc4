// A limit of what a model may think, through both APIs: the closing tag comes when it is used up,
// whatever the model would have said, and what follows is the answer.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/http_client.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e::thinking_budget_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kClose[] = "</think>";
// The simulated device never closes what this opens by itself.
constexpr char kOpenPrompt[] = "Once upon a time<think>\n";

std::unique_ptr<TestDaemon> StartSim(std::vector<std::string> flags = {}) {
  flags.insert(flags.begin(), {"--sim-base-us=200", "--sim-per-token-us=0"});
  // By default on the CPU as well: the sampler proper.
  auto daemon = TestDaemon::Start({.flags = std::move(flags), .with_http = true});
  EXPECT_TRUE(daemon.ok()) << daemon.status();
  if (!daemon.ok()) std::abort();
  return *std::move(daemon);
}

v1::GenerateRequest Thinking(int32_t budget, uint32_t max_tokens) {
  v1::GenerateRequest request = TextRequest(kOpenPrompt, max_tokens);
  request.mutable_sampling()->set_thinking_budget(budget);
  request.mutable_sampling()->set_seed(3);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

// Tokens of a text by itself.
std::vector<uint32_t> TokensOf(TestDaemon& daemon, const std::string& text) {
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_add_special_tokens(false);
  v1::TokenizeResponse response;
  EXPECT_TRUE(daemon.stub().Tokenize(&context, request, &response).ok());
  return {response.token_ids().begin(), response.token_ids().end()};
}

std::vector<uint32_t> Part(const std::vector<uint32_t>& tokens, size_t begin, size_t end) {
  return {tokens.begin() + static_cast<long>(begin), tokens.begin() + static_cast<long>(end)};
}

class ThinkingBudget : public ::testing::TestWithParam<const char*> {
 protected:
  ThinkingBudget() : daemon_(StartSim({absl::StrCat("--device=", GetParam())})) {}
  const std::unique_ptr<TestDaemon> daemon_;
};

TEST_P(ThinkingBudget, ClosesTheThoughtsAfterSoManyTokens) {
  const std::vector<uint32_t> close = TokensOf(*daemon_, kClose);
  const CallResult free = Generate(daemon_->stub(), Thinking(-1, 40));
  ASSERT_TRUE(free.status.ok()) << free.status.error_message();
  for (const int32_t budget : {0, 1, 7, 39}) {
    const CallResult unary = Generate(daemon_->stub(), Thinking(budget, 40));
    ASSERT_TRUE(unary.status.ok()) << unary.status.error_message();
    EXPECT_EQ(unary.started.sampling().thinking_budget(), budget);
    const std::vector<uint32_t>& tokens = unary.first().token_ids;
    ASSERT_EQ(tokens.size(), 40u);
    const size_t begin = static_cast<size_t>(budget);
    const size_t end = std::min<size_t>(begin + close.size(), 40);
    // Up to there it thinks as it would have.
    EXPECT_EQ(Part(tokens, 0, begin), Part(free.first().token_ids, 0, begin));
    EXPECT_EQ(Part(tokens, begin, end), Part(close, 0, end - begin));
    EXPECT_EQ(unary.first().finished.reason(), v1::FINISH_REASON_LENGTH);
    if (end < 40) {
      EXPECT_THAT(unary.first().text, HasSubstr(kClose));
    }
    const CallResult stream = StreamGenerate(daemon_->stub(), Thinking(budget, 40));
    EXPECT_TRUE(stream.first().SameOutput(unary.first()));
  }
}

TEST_P(ThinkingBudget, EachSequenceHasItsOwn) {
  const std::vector<uint32_t> close = TokensOf(*daemon_, kClose);
  v1::GenerateRequest request = Thinking(5, 20);
  request.mutable_output()->set_n(3);
  request.mutable_output()->set_logprobs(2);
  const CallResult result = StreamGenerate(daemon_->stub(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  ASSERT_EQ(result.sequences.size(), 3u);
  for (const auto& [index, sequence] : result.sequences) {
    EXPECT_EQ(Part(sequence.token_ids, 5, 5 + close.size()), close);
    EXPECT_EQ(sequence.logprobs.size(), 20u);
    EXPECT_EQ(sequence.num_finished, 1);
  }
}

TEST_P(ThinkingBudget, StopRulesSeeTheForcedTokens) {
  v1::GenerateRequest request = Thinking(4, 40);
  request.mutable_stopping()->add_stop(kClose);
  const CallResult stopped = StreamGenerate(daemon_->stub(), request);
  EXPECT_EQ(stopped.first().finished.reason(), v1::FINISH_REASON_STOP_SEQUENCE);
  EXPECT_EQ(stopped.first().finished.stop_string(), kClose);
  EXPECT_FALSE(absl::StrContains(stopped.first().text, kClose));
  // What else a request rules out does not rule them out.
  request = Thinking(4, 40);
  const std::vector<uint32_t> close = TokensOf(*daemon_, kClose);
  for (const uint32_t id : close) (*request.mutable_sampling()->mutable_logit_bias())[id] = -100;
  request.mutable_sampling()->add_bad_words("think");
  request.mutable_sampling()->set_repetition_penalty(2);
  request.mutable_sampling()->add_allowed_token_ids(30);
  request.mutable_sampling()->add_allowed_token_ids(31);
  const CallResult ruled = Generate(daemon_->stub(), request);
  ASSERT_TRUE(ruled.status.ok()) << ruled.status.error_message();
  EXPECT_EQ(Part(ruled.first().token_ids, 4, 4 + close.size()), close);
}

TEST_P(ThinkingBudget, WhatCannotHaveOneIsRefusedByTheField) {
  v1::GenerateRequest request = Thinking(4, 10);
  request.mutable_sampling()->set_regex("a*");
  EXPECT_EQ(FirstViolation(Generate(daemon_->stub(), request).status), "sampling.thinking_budget");
  request = Thinking(4, 10);
  request.mutable_sampling()->mutable_beam_search()->set_width(2);
  EXPECT_EQ(FirstViolation(Generate(daemon_->stub(), request).status), "sampling.thinking_budget");
  EXPECT_EQ(FirstViolation(Generate(daemon_->stub(), Thinking(-2, 10)).status),
            "sampling.thinking_budget");
}

INSTANTIATE_TEST_SUITE_P(Devices, ThinkingBudget, ::testing::Values("sim", "cpu"));

TEST(ThinkingBudgetHttp, ByEitherNameAndWithThePromptsTag) {
  const auto daemon = StartSim({"--device=sim"});
  for (const char* name : {"thinking_token_budget", "thinking_budget_tokens"}) {
    const json body = {{"prompt", kOpenPrompt}, {"max_tokens", 30}, {name, 3}, {"seed", 1}};
    const HttpResponse response = HttpPost(daemon->http_port(), "/v1/completions", body);
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_THAT(std::string(response.Json()["choices"][0]["text"]), HasSubstr(kClose)) << name;
  }
  const HttpResponse refused = HttpPost(
      daemon->http_port(), "/v1/completions", {{"prompt", "a"}, {"thinking_token_budget", -2}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.Error("param"), "thinking_token_budget");
}

// A server's own limit, for chats whose template opens the thoughts.
TEST(ThinkingBudgetHttp, TheServersLimitTellsThoughtsFromTheAnswer) {
  const auto daemon =
      StartSim({"--device=sim", "--reasoning-budget=6", "--http-reasoning-parser=open"});
  const json messages = {{{"role", "user"}, {"content", "Hi"}},
                         {{"role", "assistant"}, {"content", "<think>"}}};
  const json body = {{"messages", messages},
                     {"continue_final_message", true},
                     {"max_tokens", 40},
                     {"ignore_eos", true},
                     {"seed", 1}};
  const HttpResponse whole = HttpPost(daemon->http_port(), "/v1/chat/completions", body);
  ASSERT_EQ(whole.status, 200) << whole.body;
  const json message = whole.Json()["choices"][0]["message"];
  EXPECT_FALSE(message["reasoning_content"].is_null()) << whole.body;
  EXPECT_FALSE(message["content"].is_null());
  EXPECT_FALSE(absl::StrContains(std::string(message["content"]), kClose));
  std::string thoughts, answer;
  for (const json& event : HttpStream(daemon->http_port(), "/v1/chat/completions", body)) {
    const json& delta = event["choices"][0]["delta"];
    thoughts += delta.value("reasoning_content", "");
    if (delta.contains("content") && delta["content"].is_string())
      answer += delta["content"].get<std::string>();
  }
  EXPECT_EQ(thoughts, message["reasoning_content"]);
  EXPECT_EQ(answer, message["content"]);
  // A request may lift it, and one with a form of its own never has it.
  json lifted = body;
  lifted["thinking_token_budget"] = -1;
  const json all =
      HttpPost(daemon->http_port(), "/v1/chat/completions", lifted).Json()["choices"][0]["message"];
  EXPECT_TRUE(all["content"].is_null() || all["content"] == "") << all;
  json formed = body;
  formed["guided_regex"] = "[a-z ]{5,20}";
  EXPECT_EQ(HttpPost(daemon->http_port(), "/v1/chat/completions", formed).status, 200);
}

}  // namespace
}  // namespace pagoda::e2e::thinking_budget_test
