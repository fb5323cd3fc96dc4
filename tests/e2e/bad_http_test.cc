// Every route with every field of its body missing, of each other type and of extreme values, from
// a table of the fields: served, or refused as the client's fault by the name of the field in
// OpenAI's shape, while a stream beside goes on as ever.

#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "tests/e2e/http_client.h"
#include "tests/e2e/neighbour.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e::bad_http_test {
namespace {

using nlohmann::json;

// What a field that is there may be in place of what it should be: JSON texts, some of which no
// library would write.
std::vector<std::string> BadValues() {
  std::string many = "[0";
  for (int i = 0; i < 3000; ++i) many += ",0";
  many += "]";
  const std::string deep = std::string(50, '[') + std::string(50, ']');
  return {"null",
          "true",
          "false",
          "0",
          "1",
          "-1",
          "1.5",
          "1e300",
          "-1e300",
          "1e-300",
          "-0.0",
          "9007199254740993",
          "18446744073709551615",
          "18446744073709551616",
          "-9223372036854775808",
          "\"\"",
          "\"x\"",
          "\"\\u0000\"",
          "\"\\ud83d\\ude00\"",
          "\"(((a*)*)*\"",
          absl::StrCat("\"", std::string(100'000, 'y'), "\""),
          "[]",
          "[null]",
          "[[]]",
          "[{}]",
          "[-1]",
          "[1e300]",
          "[\"\"]",
          "[\"x\", 7]",
          "{}",
          "{\"x\": 1}",
          "{\"-1\": 1}",
          "{\"0\": 1e300}",
          many,
          deep};
}

// Fields of a route, as JSON pointers into its good body, where their parents are; also one that
// the good body does not have.
struct Route {
  const char* path;
  json good;
  std::vector<std::string> fields;
};

const std::vector<std::string>& CommonFields() {
  static const auto& fields = *new std::vector<std::string>{"/model",
                                                            "/request_id",
                                                            "/cache_salt",
                                                            "/priority",
                                                            "/temperature",
                                                            "/top_p",
                                                            "/min_p",
                                                            "/typical_p",
                                                            "/top_k",
                                                            "/repetition_penalty",
                                                            "/seed",
                                                            "/frequency_penalty",
                                                            "/logit_bias",
                                                            "/presence_penalty",
                                                            "/bad_words",
                                                            "/allowed_token_ids",
                                                            "/guided_json",
                                                            "/guided_json_object",
                                                            "/guided_regex",
                                                            "/guided_grammar",
                                                            "/guided_choice",
                                                            "/structured_outputs",
                                                            "/stop",
                                                            "/stop_token_ids",
                                                            "/min_tokens",
                                                            "/include_stop_str_in_output",
                                                            "/ignore_eos",
                                                            "/n",
                                                            "/best_of",
                                                            "/skip_special_tokens",
                                                            "/stream",
                                                            "/truncate_prompt_tokens",
                                                            "/stream_options",
                                                            "/return_token_ids",
                                                            "/max_tokens",
                                                            "/use_beam_search",
                                                            "/length_penalty",
                                                            "/early_stopping",
                                                            "/logprobs",
                                                            "/prompt_logprobs",
                                                            "/response_format",
                                                            "/thinking_token_budget",
                                                            "/thinking_budget_tokens"};
  return fields;
}

std::vector<Route> Routes() {
  const json message = {{"role", "user"}, {"content", "Hello"}};
  const json tool = {{"type", "function"},
                     {"function", {{"name", "f"}, {"parameters", {{"type", "object"}}}}}};
  std::vector<Route> routes = {
      {"/v1/completions",
       {{"prompt", "Once"}, {"max_tokens", 2}},
       {"/prompt", "/echo", "/suffix", "/add_special_tokens"}},
      {"/v1/completions", {{"prompt", {5}}, {"max_tokens", 2}}, {"/prompt/0"}},
      {"/v1/completions", {{"prompt", {"a", "b"}}, {"max_tokens", 2}}, {"/prompt/1"}},
      {"/v1/completions",
       {{"prompt", "Once"},
        {"max_tokens", 2},
        {"stream", true},
        {"stream_options", json::object()}},
       {"/stream", "/stream_options/include_usage", "/stream_options/continuous_usage_stats"}},
      {"/v1/completions",
       {{"prompt", "Once"}, {"max_tokens", 2}, {"structured_outputs", json::object()}},
       {"/structured_outputs/json",
        "/structured_outputs/json_object",
        "/structured_outputs/regex",
        "/structured_outputs/grammar",
        "/structured_outputs/choice"}},
      {"/v1/completions",
       {{"prompt", "Once"}, {"max_tokens", 2}, {"use_beam_search", true}, {"n", 2}},
       {"/n", "/best_of", "/length_penalty", "/early_stopping"}},
      {"/v1/chat/completions",
       {{"messages", {message}}, {"max_tokens", 2}},
       {"/messages",
        "/messages/0",
        "/messages/0/role",
        "/messages/0/content",
        "/messages/0/name",
        "/messages/0/tool_calls",
        "/messages/0/tool_call_id",
        "/messages/0/reasoning",
        "/messages/0/reasoning_content",
        "/max_completion_tokens",
        "/top_logprobs",
        "/tools",
        "/tool_choice",
        "/functions",
        "/function_call",
        "/add_generation_prompt",
        "/continue_final_message",
        "/chat_template_kwargs"}},
      {"/v1/chat/completions",
       {{"messages", {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "a"}}}}}}},
        {"max_tokens", 2}},
       {"/messages/0/content/0", "/messages/0/content/0/type", "/messages/0/content/0/text"}},
      {"/v1/chat/completions",
       {{"messages", {{{"role", "user"}, {"content", {{{"type", "refusal"}, {"refusal", "a"}}}}}}},
        {"max_tokens", 2}},
       {"/messages/0/content/0/refusal"}},
      {"/v1/chat/completions",
       {{"messages", {message}},
        {"max_tokens", 2},
        {"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", true}}}}}},
       {"/response_format/type",
        "/response_format/json_schema",
        "/response_format/json_schema/schema"}},
      {"/v1/chat/completions",
       {{"messages", {message}},
        {"max_tokens", 2},
        {"tools", {tool}},
        {"tool_choice", {{"type", "function"}, {"function", {{"name", "f"}}}}}},
       {"/tools/0",
        "/tools/0/function",
        "/tools/0/function/name",
        "/tools/0/function/parameters",
        "/tool_choice/function",
        "/tool_choice/function/name"}},
      {"/v1/chat/completions",
       {{"messages", {message}}, {"max_tokens", 2}, {"logprobs", true}, {"top_logprobs", 1}},
       {"/logprobs", "/top_logprobs"}},
      {"/tokenize",
       {{"prompt", "Once"}},
       {"/model", "/prompt", "/messages", "/add_special_tokens", "/parse_special_tokens"}},
      {"/detokenize",
       {{"tokens", {5}}},
       {"/model", "/tokens", "/tokens/0", "/skip_special_tokens"}}};
  for (const size_t i : {size_t{0}, size_t{6}}) {
    routes[i].fields.insert(routes[i].fields.end(), CommonFields().begin(), CommonFields().end());
  }
  return routes;
}

// "/messages/0/content" -> "messages[0].content"
std::string FieldOf(const std::string& pointer) {
  std::string field;
  std::istringstream parts(pointer.substr(1));
  for (std::string part; std::getline(parts, part, '/');) {
    const bool is_index = part.find_first_not_of("0123456789") == std::string::npos;
    absl::StrAppend(&field, is_index ? "[" : field.empty() ? "" : ".", part, is_index ? "]" : "");
  }
  return field;
}

bool IsWithin(absl::string_view inner, absl::string_view outer) {
  if (!absl::ConsumePrefix(&inner, outer)) return false;
  return inner.empty() || inner[0] == '.' || inner[0] == '[';
}

// Whether an error that names `told` is of a request whose `field` was changed: that one, what
// holds it or what it holds, or one that contradicts it.
bool Concerns(const std::string& told, const std::string& field) {
  if (told.empty()) return false;
  if (IsWithin(told, field) || IsWithin(field, told)) return true;
  const std::multimap<std::string, std::string> kPartners = {
      {"max_tokens", "min_tokens"},
      {"max_completion_tokens", "min_tokens"},
      {"n", "best_of"},
      {"stream", "stream_options"},
      {"stream", "best_of"},
      {"logprobs", "top_logprobs"},
      {"tools", "tool_choice"},
      {"tool_choice", "tools"},
      {"messages", "continue_final_message"},
      {"add_generation_prompt", "continue_final_message"},
      {"use_beam_search", "n"},
      {"thinking_budget_tokens", "thinking_token_budget"},
      {"best_of", "n"},
      {"prompt", "messages"}};
  for (const auto& [one, other] : kPartners) {
    if (IsWithin(field, one) && IsWithin(told, other)) return true;
    if (IsWithin(field, other) && IsWithin(told, one)) return true;
  }
  return false;
}

// Empty: as it should be.
std::string Fault(const HttpResponse& response, const std::string& field) {
  if (response.status == 200) {
    // A stream that has begun can only tell an error as an event.
    return absl::StrContains(response.body, "\"type\":\"server_error\"") ? "fails in the stream"
                                                                         : "";
  }
  if (response.status < 400 || response.status >= 500) return "not the client's fault";
  const json body = response.Json();
  if (!body.is_object() || !body.contains("error")) return "not of OpenAI's shape";
  for (const char* member : {"message", "type", "param", "code"})
    if (!body["error"].contains(member)) return absl::StrCat("has no ", member);
  if (!Concerns(response.Error("param"), field)) return "names another field";
  return "";
}

class BadHttp : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto daemon = TestDaemon::Start({.flags = {"--device=sim",
                                               "--sim-base-us=0",
                                               "--sim-per-token-us=0",
                                               "--max-model-len=256"},
                                     .with_http = true});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = daemon->release();
  }
  static void TearDownTestSuite() { delete daemon_; }
  static int port() { return daemon_->http_port(); }

  static TestDaemon* daemon_;
};

TestDaemon* BadHttp::daemon_ = nullptr;

TEST_F(BadHttp, EveryFieldOfEveryBody) {
  constexpr char kMark[] = "\"value under test\"";
  Neighbour neighbour(*daemon_);
  HttpClient client(port());
  int num_calls = 0, num_refused = 0;
  const auto post = [&](const Route& route, const std::string& body, const std::string& field) {
    ASSERT_TRUE(client.Post(route.path, body)) << body.substr(0, 300);
    const HttpResponse response = client.Read();
    ++num_calls;
    num_refused += response.status == 200 ? 0 : 1;
    EXPECT_EQ(Fault(response, field), "")
        << route.path << " " << field << " in " << body.substr(0, 300) << "\nanswered "
        << response.status << " " << response.body.substr(0, 500);
  };
  for (const Route& route : Routes()) {
    ASSERT_TRUE(client.Post(route.path, route.good.dump()));
    const HttpResponse good = client.Read();
    ASSERT_EQ(good.status, 200) << route.path << " " << route.good << "\n" << good.body;
    for (const std::string& pointer : route.fields) {
      const json::json_pointer at(pointer);
      if (route.good.contains(at)) {
        json without = route.good;
        json& parent = without[at.parent_pointer()];
        if (parent.is_array()) {
          parent.erase(0);
        } else {
          parent.erase(at.back());
        }
        post(route, without.dump(), FieldOf(pointer));
      }
      json marked = route.good;
      marked[at] = "value under test";
      const std::string text = marked.dump();
      for (const std::string& value : BadValues())
        post(route, absl::StrReplaceAll(text, {{kMark, value}}), FieldOf(pointer));
    }
  }
  neighbour.Stop();
  EXPECT_GT(num_refused, 1000);
  std::printf("%d calls, %d refused\n", num_calls, num_refused);
}

// Bodies that are not what a route reads at all.
TEST_F(BadHttp, EveryRouteWithOtherBodiesAndMethods) {
  Neighbour neighbour(*daemon_);
  const std::vector<std::string> bodies = {"",
                                           "null",
                                           "7",
                                           "\"x\"",
                                           "[]",
                                           "{",
                                           "{}}",
                                           "{\"a\":}",
                                           "\xff",
                                           std::string(5000, '['),
                                           "{}",
                                           "nan",
                                           "{\"prompt\":\"\\ud800\"}"};
  const std::vector<std::string> methods = {
      "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"};
  const std::vector<std::string> paths = {"/",
                                          "/health",
                                          "/ping",
                                          "/version",
                                          "/metrics",
                                          "/v1/models",
                                          "/v1/models/",
                                          "/v1/models/none",
                                          "/v1/models/%00",
                                          "/v1/completions",
                                          "/v1/chat/completions",
                                          "/tokenize",
                                          "/detokenize",
                                          "/nowhere",
                                          "/v1/completions/",
                                          "*"};
  for (const std::string& path : paths) {
    for (const std::string& method : methods) {
      for (const std::string& body : bodies) {
        HttpClient client(port());
        ASSERT_TRUE(client.Send(absl::StrCat(method,
                                             " ",
                                             path,
                                             " HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                                             "application/json\r\nContent-Length: ",
                                             body.size(),
                                             "\r\n\r\n",
                                             body)));
        const HttpResponse response = client.Read(/*has_body=*/method != "HEAD");
        EXPECT_TRUE(response.status >= 200 && response.status < 500)
            << method << " " << path << " " << body.substr(0, 50) << ": " << response.status;
        if (response.status >= 400 && method != "HEAD") {
          EXPECT_TRUE(response.Json().contains("error")) << response.body;
        }
      }
    }
  }
  neighbour.Stop();
}

// Names of members that the sources read from bodies are all in the table.
TEST(BadHttpTable, HasEveryField) {
  std::set<std::string> known;
  for (const Route& route : Routes()) {
    for (const std::string& pointer : route.fields)
      known.insert(pointer.substr(pointer.rfind('/') + 1));
  }
  const std::string dir = PAGODA_SOURCE_DIR;
  const std::regex member(
      "(?:Find|Has|Bool|BoolOr|Float|Integer|Count|String|StringOr|Strings|Ids|Object|Array|read)"
      "\\(\\s*\"([a-z_]+)\"");
  int num_found = 0;
  for (const char* file : {"daemon/openai/generation_request.cc",
                           "daemon/openai/completion_request.cc",
                           "daemon/openai/chat_request.cc",
                           "daemon/server/http_text_calls.cc"}) {
    std::ifstream in(absl::StrCat(dir, "/", file));
    ASSERT_TRUE(in.good()) << file;
    std::ostringstream source;
    source << in.rdbuf();
    const std::string text = source.str();
    for (std::sregex_iterator it(text.begin(), text.end(), member), end; it != end; ++it) {
      ++num_found;
      EXPECT_TRUE(known.count((*it)[1].str()) > 0) << file << " reads \"" << (*it)[1] << "\"";
    }
  }
  EXPECT_GT(num_found, 40);
}

}  // namespace
}  // namespace pagoda::e2e::bad_http_test
