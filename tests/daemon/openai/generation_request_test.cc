#include "daemon/openai/generation_request.h"

#include "daemon/openai/error_body.h"
#include "gtest/gtest.h"

namespace pagoda::daemon::openai {
namespace {

TEST(ParseCompletionTest, PromptsOfEveryKind) {
  EXPECT_EQ(ParseCompletion(R"({"prompt":"a"})")->calls.at(0).prompt().text(), "a");
  EXPECT_EQ(ParseCompletion(R"({"prompt":["a","b"]})")->calls.at(1).prompt().text(), "b");
  EXPECT_EQ(ParseCompletion(R"({"prompt":[5,6]})")->calls.at(0).prompt().token_ids().ids(1), 6u);
  EXPECT_EQ(ParseCompletion(R"({"prompt":[[5],[6]]})")->calls.at(1).prompt().token_ids().ids(0),
            6u);
  EXPECT_EQ(ParseCompletion(R"({"prompt":"a"})")->calls.at(0).stopping().max_tokens(), 16u);
}

TEST(ParseCompletionTest, ErrorsNameTheField) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"({})", "prompt"},
      {R"({"prompt":null})", "prompt"},
      {R"({"prompt":[]})", "prompt"},
      {R"({"prompt":[-1]})", "prompt[0]"},
      {R"({"prompt":[1.5]})", "prompt[0]"},
      {R"({"prompt":[9223372036854775808]})", "prompt[0]"},
      {R"({"prompt":"a","temperature":"1"})", "temperature"},
      {R"({"prompt":"a","max_tokens":-1})", "max_tokens"},
      {R"({"prompt":"a","logit_bias":{"abc":1}})", "logit_bias"},
      {R"({"prompt":"a","logit_bias":{"99999999999":1}})", "logit_bias"},
      {R"({"prompt":"a","stream_options":{}})", "stream_options"},
      {R"({"prompt":"a","response_format":{"type":"xml"}})", "response_format.type"},
      {R"({"prompt":"a","guided_regex":"a","guided_json":{}})", "guided_regex"},
      {R"({"prompt":"a","stream":true,"top_k":1,"stream":false})", "stream"},
      {R"({"prompt":"a","x":[{},{"y":{"a":1,"b":[{"a":1}],"a":2}}]})", "x[1].y.a"},
      {R"([])", "body"},
      {R"({)", "body"}};
  for (const auto& [body, field] : kCases) {
    const auto request = ParseCompletion(body);
    ASSERT_FALSE(request.ok()) << body;
    EXPECT_EQ(ToHttpError(request.status()).param, field) << body;
    EXPECT_EQ(ToHttpError(request.status()).status, 400) << body;
  }
}

TEST(ParseChatTest, ContentToolsAndFormats) {
  const auto request = ParseChat(R"({"messages":[{"role":"developer","content":"s"},
      {"role":"user","content":[{"type":"text","text":"a"}]},
      {"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}],
      "tools":[{"type":"function","function":{"name":"f"}}],"max_completion_tokens":7,
      "unknown":1,"logprobs":true,"top_logprobs":2})");
  ASSERT_TRUE(request.ok()) << request.status();
  const v1::GenerateRequest& call = request->calls.at(0);
  EXPECT_EQ(call.prompt().chat().messages(0).role(), "system");
  EXPECT_EQ(call.prompt().chat().messages(1).content(0).text(), "a");
  EXPECT_EQ(call.prompt().chat().messages(2).content_size(), 0);
  EXPECT_EQ(call.prompt().chat().messages(2).tool_calls_json(), R"([{"id":"1"}])");
  EXPECT_EQ(request->shape.tools, std::vector<std::string>{"f"});
  EXPECT_EQ(call.stopping().max_tokens(), 7u);
  EXPECT_EQ(call.output().logprobs(), 2);
}

TEST(ParseChatTest, ToolsThatMustBeCalled) {
  const auto named = ParseChat(R"({"messages":[],"tools":[{"function":{"name":"f","parameters":
      {"type":"object"}}}],"tool_choice":{"type":"function","function":{"name":"f"}}})");
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->shape.forced_tool, "f");
  EXPECT_EQ(named->calls.at(0).sampling().json_schema(), R"({"type":"object"})");
  const auto required =
      ParseChat(R"({"messages":[],"tools":[{"function":{"name":"f"}}],"tool_choice":"required"})");
  ASSERT_TRUE(required.ok()) << required.status();
  EXPECT_EQ(required->calls.at(0).sampling().json_schema(),
            R"({"type":"array","minItems":1,"items":{"type":"object","properties":{"name":)"
            R"({"type":"string","enum":["f"]},"parameters":{"type":"object"}},)"
            R"("required":["name","parameters"],"additionalProperties":false}})");
}

}  // namespace
}  // namespace pagoda::daemon::openai
