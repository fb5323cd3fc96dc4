// /v1/chat/completions: the order of a stream, tools, thoughts and output of a given form.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/http_client.h"
#include "tests/e2e/test_daemon.h"
#include "tests/fixtures/chain_model.h"
#include "tests/fixtures/context_model.h"

namespace pagoda::e2e::http_chat_test {
namespace {

using fixtures::Chain;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kPath[] = "/v1/chat/completions";

struct Served {
  explicit Served(const fixtures::ModelFiles& files, std::vector<std::string> flags = {})
      : dir(fixtures::WriteModelDir(files)) {
    flags.push_back("--kv-cache-memory=32MiB");
    auto started =
        TestDaemon::Start({.model_dir = dir.path(), .flags = std::move(flags), .with_http = true});
    EXPECT_TRUE(started.ok()) << started.status();
    if (!started.ok()) std::abort();
    daemon = *std::move(started);
  }
  int port() const { return daemon->http_port(); }

  fixtures::TemporaryDir dir;
  std::unique_ptr<TestDaemon> daemon;
};

// A model that answers every chat with the tokens of these texts, one after the other.
fixtures::ModelFiles Saying(const std::vector<std::string>& texts) {
  fixtures::ChainModelOptions options;
  std::vector<std::string>& extra = options.tokenizer.extra_tokens;
  // The template ends with a line's end.
  std::vector<fixtures::TokenId> tokens = {'\n'};
  for (const std::string& text : texts) {
    if (text.size() == 1) {  // every byte has a token
      tokens.push_back(static_cast<uint8_t>(text[0]));
      continue;
    }
    tokens.push_back(fixtures::IdsOf({}).extra + static_cast<fixtures::TokenId>(extra.size()));
    extra.push_back(text);
  }
  tokens.push_back(fixtures::IdsOf(options.tokenizer).im_end);
  options.next = Chain(tokens);
  return ChainModel(options);
}

json Chat(json more = json::object()) {
  json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"temperature", 0}};
  body.update(more);
  return body;
}

json Tool(const std::string& name, json parameters = {{"type", "object"}}) {
  return {{"type", "function"},
          {"function", {{"name", name}, {"parameters", std::move(parameters)}}}};
}

json ChoiceOf(const Served& served, const json& body) {
  const HttpResponse response = HttpPost(served.port(), kPath, body);
  EXPECT_EQ(response.status, 200) << response.body;
  return response.Json()["choices"][0];
}

// What the pieces of a stream add up to, as a message.
json Gather(const std::vector<json>& events) {
  json message = {{"content", ""}, {"reasoning_content", ""}, {"tool_calls", json::array()}};
  for (const json& event : events) {
    if (event["choices"].empty()) continue;
    const json& choice = event["choices"][0];
    const json& delta = choice["delta"];
    for (const char* name : {"content", "reasoning_content"}) {
      if (delta.contains(name))
        message[name] = message[name].get<std::string>() + delta[name].get<std::string>();
    }
    if (!choice["finish_reason"].is_null()) message["finish_reason"] = choice["finish_reason"];
    for (const json& piece : delta.value("tool_calls", json::array())) {
      const auto index = piece["index"].get<size_t>();
      if (piece.contains("id")) {
        EXPECT_EQ(index, message["tool_calls"].size());
        message["tool_calls"].push_back(piece);
      } else {
        json& arguments = message["tool_calls"].at(index)["function"]["arguments"];
        arguments =
            arguments.get<std::string>() + piece["function"]["arguments"].get<std::string>();
      }
    }
  }
  return message;
}

TEST(HttpChat, AnswerAndStreamInOrder) {
  const Served served(Saying({"o", "k"}));
  const HttpResponse response = HttpPost(served.port(), kPath, Chat());
  ASSERT_EQ(response.status, 200) << response.body;
  const json reply = response.Json();
  EXPECT_TRUE(absl::StartsWith(reply["id"].get<std::string>(), "chatcmpl-"));
  EXPECT_EQ(reply["object"], "chat.completion");
  EXPECT_EQ(reply["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(reply["choices"][0]["message"]["content"], "ok");
  EXPECT_FALSE(reply["choices"][0]["message"].contains("tool_calls"));
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "stop");

  const auto events = HttpStream(
      served.port(), kPath, Chat({{"n", 2}, {"stream_options", {{"include_usage", true}}}}));
  std::vector<std::vector<json>> deltas(2);
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(events[i]["object"], "chat.completion.chunk");
    EXPECT_EQ(events[i]["id"], events[0]["id"]);
    ASSERT_EQ(events[i]["choices"].size(), 1u);
    const json& choice = events[i]["choices"][0];
    ASSERT_TRUE(choice.contains("finish_reason"));
    deltas.at(choice["index"].get<size_t>()).push_back(choice);
  }
  for (const auto& choices : deltas) {
    ASSERT_GE(choices.size(), 3u);
    EXPECT_EQ(choices.front()["delta"], (json{{"role", "assistant"}, {"content", ""}}));
    std::string text;
    for (size_t i = 0; i + 1 < choices.size(); ++i) {
      EXPECT_TRUE(choices[i]["finish_reason"].is_null());
      text += choices[i]["delta"]["content"];
    }
    EXPECT_EQ(text, "ok");
    EXPECT_EQ(choices.back()["delta"], json::object());
    EXPECT_EQ(choices.back()["finish_reason"], "stop");
  }
  EXPECT_EQ(events.back()["choices"], json::array());
  EXPECT_EQ(events.back()["usage"]["prompt_tokens"], reply["usage"]["prompt_tokens"]);
  EXPECT_EQ(events.back()["usage"]["completion_tokens"],
            2 * reply["usage"]["completion_tokens"].get<int>());
}

TEST(HttpChat, Logprobs) {
  const Served served(Saying({"o", "\xC3", "\xA9"}));
  const json choice = ChoiceOf(served, Chat({{"logprobs", true}, {"top_logprobs", 2}}));
  EXPECT_EQ(choice["message"]["content"], "o\u00e9");
  const json& content = choice["logprobs"]["content"];
  ASSERT_GE(content.size(), 3u);
  EXPECT_EQ(content[0]["token"], "o");
  EXPECT_EQ(content[0]["bytes"], json{'o'});
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(content[0]["top_logprobs"][0]["token"], "o");
  // Half a character has its bytes all the same.
  EXPECT_EQ(content[1]["bytes"], json{0xC3});
  EXPECT_TRUE(choice["logprobs"]["refusal"].is_null());
  EXPECT_TRUE(ChoiceOf(served, Chat())["logprobs"].is_null());
}

TEST(HttpChat, CallsInHermesStyle) {
  const Served served(Saying({"Well.\n",
                              "<tool_call>\n{\"name\": \"f\", \"argu",
                              "ments\": {\"x\"",
                              ": [1, \"}\"]}}\n</tool_call>",
                              "\n<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>"}));
  const json body = Chat({{"tools", {Tool("f"), Tool("g")}}});
  const json choice = ChoiceOf(served, body);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Well.");
  const json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0]["type"], "function");
  EXPECT_EQ(calls[0]["function"]["name"], "f");
  EXPECT_EQ(json::parse(calls[0]["function"]["arguments"].get<std::string>()),
            (json{{"x", {1, "}"}}}));
  EXPECT_EQ(calls[1]["function"]["name"], "g");
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);

  const json streamed = Gather(HttpStream(served.port(), kPath, body));
  EXPECT_EQ(streamed["content"], "Well.");
  EXPECT_EQ(streamed["finish_reason"], "tool_calls");
  ASSERT_EQ(streamed["tool_calls"].size(), 2u);
  for (size_t i = 0; i < 2; ++i)
    EXPECT_EQ(streamed["tool_calls"][i]["function"], calls[i]["function"]);
  // Without tools, and where they are off, it is text.
  for (const json& plain : {Chat(), Chat({{"tools", {Tool("f")}}, {"tool_choice", "none"}})}) {
    const json text = ChoiceOf(served, plain);
    EXPECT_THAT(text["message"]["content"].get<std::string>(), HasSubstr("<tool_call>"));
    EXPECT_EQ(text["finish_reason"], "stop");
  }
}

TEST(HttpChat, CallsInLlamaStyleComePiecewise) {
  const Served served(
      Saying({"{\"name\": \"f\", ", "\"parameters\": {\"a\":", " \"b", "c\"", "}}"}));
  const json body = Chat({{"tools", {Tool("f")}}});
  const json choice = ChoiceOf(served, body);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": \"bc\"}");
  const auto events = HttpStream(served.port(), kPath, body);
  int num_pieces = 0;
  for (const json& event : events)
    num_pieces += event["choices"][0]["delta"].contains("tool_calls") ? 1 : 0;
  EXPECT_GE(num_pieces, 2);
  EXPECT_EQ(Gather(events)["tool_calls"][0]["function"]["arguments"], "{\"a\": \"bc\"}");
  EXPECT_EQ(Gather(events)["content"], "");
}

TEST(HttpChat, Thoughts) {
  const Served served(Saying({"<think>", "hm", " hm", "</th", "ink>\n\n", "o", "k"}));
  const HttpResponse response = HttpPost(served.port(), kPath, Chat());
  const json message = response.Json()["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "hm hm");
  EXPECT_EQ(message["content"], "ok");
  EXPECT_EQ(response.Json()["usage"]["completion_tokens_details"]["reasoning_tokens"], 5);
  const auto events =
      HttpStream(served.port(), kPath, Chat({{"stream_options", {{"include_usage", true}}}}));
  EXPECT_EQ(Gather(events)["reasoning_content"], "hm hm");
  EXPECT_EQ(Gather(events)["content"], "ok");
  EXPECT_EQ(events.back()["usage"]["completion_tokens_details"]["reasoning_tokens"], 5);
  // Cut short, all of it is thought.
  const json cut = HttpPost(served.port(), kPath, Chat({{"max_tokens", 3}})).Json();
  EXPECT_EQ(cut["choices"][0]["message"]["reasoning_content"], "hm hm");
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(cut["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);
}

TEST(HttpChat, ThoughtsOfATemplateThatOpensThem) {
  const std::vector<std::string> texts = {"hm", "</think>", "ok"};
  const Served open(Saying(texts), {"--http-reasoning-parser=open"});
  EXPECT_EQ(ChoiceOf(open, Chat())["message"]["reasoning_content"], "hm");
  const Served none(Saying(texts), {"--http-reasoning-parser=none"});
  EXPECT_EQ(ChoiceOf(none, Chat())["message"]["content"], "hm</think>ok");
}

// A model of random weights says only what it is held to.
class HttpChatForms : public ::testing::Test {
 protected:
  HttpChatForms() : served_(fixtures::ContextModel({})) {}

  static json Person() {
    return {{"type", "object"},
            {"properties", {{"age", {{"type", "integer"}, {"minimum", 0}, {"maximum", 99}}}}},
            {"required", {"age"}},
            {"additionalProperties", false}};
  }
  static json Random(json more) {
    more.update({{"temperature", 1}, {"seed", 4}, {"max_tokens", 200}});
    return Chat(more);
  }

  const Served served_;
};

TEST_F(HttpChatForms, ResponseFormat) {
  const json schema = {{"type", "json_schema"},
                       {"json_schema", {{"name", "person"}, {"schema", Person()}}}};
  const json choice = ChoiceOf(served_, Random({{"response_format", schema}}));
  EXPECT_EQ(choice["finish_reason"], "stop");
  const json person = json::parse(choice["message"]["content"].get<std::string>());
  EXPECT_LE(person["age"].get<int>(), 99);
  const auto streamed =
      Gather(HttpStream(served_.port(), kPath, Random({{"response_format", schema}})));
  EXPECT_EQ(streamed["content"], choice["message"]["content"]);
  const json object = ChoiceOf(served_, Random({{"response_format", {{"type", "json_object"}}}}));
  EXPECT_EQ(object["message"]["content"].get<std::string>().front(), '{');
}

TEST_F(HttpChatForms, NamedTool) {
  const json body =
      Random({{"tools", {Tool("f", Person())}},
              {"tool_choice", {{"type", "function"}, {"function", {{"name", "f"}}}}}});
  const json choice = ChoiceOf(served_, body);
  const json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 1u) << choice;
  EXPECT_EQ(calls[0]["function"]["name"], "f");
  EXPECT_TRUE(json::parse(calls[0]["function"]["arguments"].get<std::string>()).contains("age"));
  EXPECT_EQ(Gather(HttpStream(served_.port(), kPath, body))["tool_calls"][0]["function"],
            calls[0]["function"]);
}

TEST_F(HttpChatForms, RequiredTools) {
  int num_ended = 0;
  for (int seed = 0; seed < 8; ++seed) {
    json body = Random(
        {{"tools", {Tool("f", Person()), Tool("g", Person())}}, {"tool_choice", "required"}});
    body["seed"] = seed;
    const json choice = ChoiceOf(served_, body);
    const json& calls = choice["message"]["tool_calls"];
    ASSERT_GE(calls.size(), 1u) << choice;
    const json streamed = Gather(HttpStream(served_.port(), kPath, body));
    ASSERT_EQ(streamed["tool_calls"].size(), calls.size());
    for (size_t i = 0; i < calls.size(); ++i)
      EXPECT_EQ(streamed["tool_calls"][i]["function"], calls[i]["function"]);
    if (choice["finish_reason"] != "tool_calls") continue;
    ++num_ended;
    for (const json& call : calls) {
      EXPECT_THAT(call["function"]["name"], ::testing::AnyOf("f", "g"));
      const std::string arguments = call["function"]["arguments"];
      EXPECT_LE(json::parse(arguments)["age"].get<int>(), 99) << arguments;
    }
  }
  EXPECT_GT(num_ended, 0);
}

}  // namespace
}  // namespace pagoda::e2e::http_chat_test
