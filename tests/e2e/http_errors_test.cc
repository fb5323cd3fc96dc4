// Requests that cannot be served as they are: always a status of 4xx in OpenAI's shape that names
// the field, never a 5xx, and the next request is served.

#include <fstream>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/http_client.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e::http_errors_test {
namespace {

using nlohmann::json;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kCompletions[] = "/v1/completions";
constexpr char kChat[] = "/v1/chat/completions";

std::unique_ptr<TestDaemon> StartHttp(std::vector<std::string> flags, std::string api_key = "") {
  flags.insert(flags.begin(), {"--device=sim", "--sim-base-us=0", "--sim-per-token-us=0"});
  auto daemon = TestDaemon::Start(
      {.flags = std::move(flags), .api_key = std::move(api_key), .with_http = true});
  EXPECT_TRUE(daemon.ok()) << daemon.status();
  if (!daemon.ok()) std::abort();
  return *std::move(daemon);
}

class HttpErrors : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = StartHttp({"--max-message-bytes=1MiB"}).release(); }
  static void TearDownTestSuite() { delete daemon_; }
  static int port() { return daemon_->http_port(); }
  static bool Serves() {
    return HttpPost(port(), kCompletions, {{"prompt", "a"}, {"max_tokens", 1}}).status == 200;
  }

  static TestDaemon* daemon_;
};

TestDaemon* HttpErrors::daemon_ = nullptr;

void ExpectShape(const HttpResponse& response) {
  const json body = response.Json();
  ASSERT_TRUE(body.is_object() && body.contains("error")) << response.body;
  for (const char* member : {"message", "type", "param", "code"})
    EXPECT_TRUE(body["error"].contains(member)) << response.body;
  EXPECT_TRUE(body["error"]["message"].is_string()) << response.body;
  EXPECT_EQ(response.Header("content-type"), "application/json");
}

TEST_F(HttpErrors, NameTheField) {
  struct Case {
    const char* path;
    json body;
    const char* param;
  };
  const json messages = {{{"role", "user"}, {"content", "a"}}};
  const std::vector<Case> cases = {
      {kCompletions, {{"max_tokens", 1}}, "prompt"},
      {kCompletions, {{"prompt", "a"}, {"temperature", -1}}, "temperature"},
      {kCompletions, {{"prompt", "a"}, {"top_p", 2}}, "top_p"},
      {kCompletions, {{"prompt", "a"}, {"n", 0}}, "n"},
      {kCompletions, {{"prompt", "a"}, {"n", 1000}}, "n"},
      {kCompletions, {{"prompt", "a"}, {"max_tokens", -1}}, "max_tokens"},
      {kCompletions, {{"prompt", "a"}, {"logprobs", 1000}}, "logprobs"},
      {kCompletions, {{"prompt", "a"}, {"logit_bias", {{"5000000", 1}}}}, "logit_bias[5000000]"},
      {kCompletions, {{"prompt", {1, 2, 99999}}}, "prompt[2]"},
      {kCompletions, {{"prompt", "a"}, {"suffix", "b"}}, "suffix"},
      {kCompletions,
       {{"prompt", "a"}, {"stream_options", {{"include_usage", true}}}},
       "stream_options"},
      {kCompletions, {{"prompt", "a"}, {"guided_regex", "("}}, "guided_regex"},
      {kChat, json::object(), "messages"},
      {kChat, {{"messages", json::array()}}, "messages"},
      {kChat, {{"messages", {{{"content", "a"}}}}}, "messages[0].role"},
      {kChat, {{"messages", {{{"role", "user"}, {"content", 7}}}}}, "messages[0].content"},
      {kChat,
       {{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}}},
       "messages[0].content[0].type"},
      {kChat, {{"messages", messages}, {"top_logprobs", 3}}, "top_logprobs"},
      {kChat, {{"messages", messages}, {"tools", {7}}}, "tools[0].function"},
      {kChat, {{"messages", messages}, {"tool_choice", "required"}}, "tool_choice"},
      {kChat,
       {{"messages", messages}, {"response_format", {{"type", "xml"}}}},
       "response_format.type"},
      {kChat,
       {{"messages", messages},
        {"response_format", {{"type", "json_schema"}, {"json_schema", json::object()}}}},
       "response_format.json_schema.schema"},
      {kChat,
       {{"messages", messages},
        {"tools", {{{"function", {{"name", "f"}, {"parameters", {{"not", json::object()}}}}}}}},
        {"tool_choice", "required"}},
       "tools"},
      {kChat,
       {{"messages", messages},
        {"response_format",
         {{"type", "json_schema"}, {"json_schema", {{"schema", {{"type", "thing"}}}}}}}},
       "response_format.json_schema.schema"},
      {"/tokenize", json::object(), "prompt"},
      {"/detokenize", {{"tokens", {-1}}}, "tokens[0]"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(absl::StrCat(c.path, " ", c.body.dump()));
    const HttpResponse response = HttpPost(port(), c.path, c.body);
    EXPECT_EQ(response.status, 400);
    ExpectShape(response);
    EXPECT_EQ(response.Error("param"), c.param) << response.body;
    EXPECT_EQ(response.Error("type"), "invalid_request_error");
    EXPECT_FALSE(response.Has("x-should-retry"));
  }
  EXPECT_TRUE(Serves());
}

TEST_F(HttpErrors, UnknownModel) {
  for (const char* path : {kCompletions, kChat}) {
    const HttpResponse response = HttpPost(port(),
                                           path,
                                           {{"model", "gpt-4"},
                                            {"prompt", "a"},
                                            {"messages", {{{"role", "user"}, {"content", "a"}}}}});
    EXPECT_EQ(response.status, 404);
    EXPECT_EQ(response.Error("code"), "model_not_found");
    EXPECT_THAT(response.Error("message"), HasSubstr("gpt-4"));
  }
}

TEST_F(HttpErrors, PromptTooLong) {
  const HttpResponse response =
      HttpPost(port(), kCompletions, {{"prompt", std::vector<int>(3000, 5)}});
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.Error("code"), "context_length_exceeded");
}

// Every field with every kind of wrong or extreme value, over one connection that stays.
TEST_F(HttpErrors, WrongAndExtremeValuesAreNeverFaultsOfOurs) {
  const std::vector<std::string> values = {"null",
                                           "true",
                                           "\"x\"",
                                           "\"\"",
                                           "[]",
                                           "{}",
                                           "[[]]",
                                           "[null]",
                                           "[\"a\",1]",
                                           "{\"a\":{}}",
                                           "0",
                                           "-1",
                                           "1.5",
                                           "1e308",
                                           "-1e308",
                                           "2147483648",
                                           "4294967296",
                                           "9223372036854775808",
                                           "18446744073709551616",
                                           "1e-320"};
  const std::vector<std::string> fields = {"model",
                                           "prompt",
                                           "messages",
                                           "max_tokens",
                                           "max_completion_tokens",
                                           "temperature",
                                           "top_p",
                                           "top_k",
                                           "min_p",
                                           "typical_p",
                                           "n",
                                           "best_of",
                                           "stop",
                                           "stop_token_ids",
                                           "seed",
                                           "logprobs",
                                           "top_logprobs",
                                           "echo",
                                           "suffix",
                                           "stream",
                                           "stream_options",
                                           "logit_bias",
                                           "presence_penalty",
                                           "frequency_penalty",
                                           "repetition_penalty",
                                           "min_tokens",
                                           "ignore_eos",
                                           "include_stop_str_in_output",
                                           "skip_special_tokens",
                                           "add_special_tokens",
                                           "truncate_prompt_tokens",
                                           "prompt_logprobs",
                                           "return_token_ids",
                                           "cache_salt",
                                           "priority",
                                           "request_id",
                                           "allowed_token_ids",
                                           "bad_words",
                                           "response_format",
                                           "guided_json",
                                           "guided_regex",
                                           "guided_grammar",
                                           "guided_choice",
                                           "structured_outputs",
                                           "tools",
                                           "tool_choice",
                                           "chat_template_kwargs",
                                           "add_generation_prompt",
                                           "continue_final_message",
                                           "use_beam_search",
                                           "length_penalty",
                                           "functions"};
  auto client = std::make_unique<HttpClient>(port());
  int num_refused = 0;
  for (const char* path : {kCompletions, kChat}) {
    for (const std::string& field : fields) {
      for (const std::string& value : values) {
        json body = {{"max_tokens", 2}};
        if (path == kCompletions) {
          body["prompt"] = "a";
        } else {
          body["messages"] = {{{"role", "user"}, {"content", "a"}}};
        }
        body.erase(field);
        std::string text = body.dump();
        text.back() = ',';
        absl::StrAppend(&text, "\"", field, "\":", value, "}");
        SCOPED_TRACE(absl::StrCat(path, " ", text));
        ASSERT_TRUE(client->Post(path, text));
        const HttpResponse response = client->Read();
        ASSERT_GE(response.status, 200);
        ASSERT_LT(response.status, 500) << response.body;
        if (response.status == 200) continue;
        ++num_refused;
        ExpectShape(response);
        const std::string param = response.Error("param");
        // "1e308" is no double that JSON has; of a number out of range the text is at fault.
        EXPECT_TRUE(absl::StrContains(param, absl::StripPrefix(field, "guided_")) ||
                    param == "body" || absl::StrContains(response.Error("message"), field))
            << response.body;
      }
    }
  }
  EXPECT_GT(num_refused, 500);
  EXPECT_TRUE(Serves());
}

TEST_F(HttpErrors, BodiesThatAreNoRequest) {
  const std::vector<std::string> bodies = {"",
                                           "{",
                                           "[]",
                                           "null",
                                           "\"a\"",
                                           "{\"prompt\":\"\xFF\"}",
                                           "{\"prompt\":\"a\",\"prompt\":\"b\"}",
                                           "{\"prompt\":\"a\"}x",
                                           "{\"prompt\":\"\\ud800\"}",
                                           std::string(1000, '['),
                                           std::string("{\"prompt\":\"a\0\"}", 14)};
  for (const std::string& body : bodies) {
    HttpClient client(port());
    ASSERT_TRUE(client.Post(kCompletions, body));
    const HttpResponse response = client.Read();
    EXPECT_EQ(response.status, 400) << body;
    ExpectShape(response);
  }
  EXPECT_TRUE(Serves());
}

TEST_F(HttpErrors, ContentTypes) {
  const std::string body = R"({"prompt":"a","max_tokens":1})";
  const auto status = [&](const std::string& headers) {
    HttpClient client(port());
    EXPECT_TRUE(client.Post(kCompletions, body, headers));
    return client.Read().status;
  };
  EXPECT_EQ(status("Content-Type: application/json; charset=utf-8\r\n"), 200);
  // Forms of other sites can send these without being asked first.
  EXPECT_EQ(status("Content-Type: text/plain\r\n"), 415);
  EXPECT_EQ(status(""), 415);
  EXPECT_EQ(status("Content-Type: application/json\r\nContent-Encoding: gzip\r\n"), 415);
}

TEST_F(HttpErrors, RoutesAndMethods) {
  EXPECT_EQ(HttpGet(port(), "/v1/completions/").status, 404);
  EXPECT_EQ(HttpPost(port(), "/", json::object()).status, 405);
  EXPECT_EQ(HttpGet(port(), kCompletions).status, 405);
  EXPECT_EQ(HttpPost(port(), "/v1/models", json::object()).status, 405);
  const HttpResponse missing = HttpPost(port(), "/v1/embeddings", json::object());
  EXPECT_EQ(missing.status, 501);
  EXPECT_EQ(missing.Header("x-should-retry"), "false");
  ExpectShape(missing);
  EXPECT_EQ(HttpGet(port(), "/health?verbose=1").status, 200);
}

// The page asks for a key itself.
TEST_F(HttpErrors, ThePageIsWhole) {
  const HttpResponse page = HttpGet(port(), "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.Header("content-type"), "text/html; charset=utf-8");
  EXPECT_THAT(page.Header("content-security-policy"), HasSubstr("default-src 'none'"));
  EXPECT_THAT(page.body, StartsWith("<!doctype html>"));
  EXPECT_THAT(page.body, EndsWith("</html>\n"));
  // It would not be self-contained.
  EXPECT_THAT(page.body, Not(HasSubstr("http://")));
  EXPECT_THAT(page.body, Not(HasSubstr("https://")));
}

TEST_F(HttpErrors, Limits) {
  {
    HttpClient client(port());
    client.Send("GET /health HTTP/1.1\r\nX: " + std::string(40'000, 'a') + "\r\n\r\n");
    const HttpResponse response = client.Read();
    EXPECT_EQ(response.status, 431);
    ExpectShape(response);
    EXPECT_TRUE(client.Ends(absl::Seconds(5)));
  }
  // The answer comes before the body has, and can be read by who still sends it.
  for (const bool announced : {true, false}) {
    HttpClient client(port());
    client.Send(absl::StrCat("POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n",
                             announced ? "Content-Length: 3000000\r\n\r\n"
                                       : "Transfer-Encoding: chunked\r\n\r\n2dc6c0\r\n"));
    client.Send(std::string(2'000'000, ' '));
    const HttpResponse response = client.Read();
    EXPECT_EQ(response.status, 413) << announced;
    ExpectShape(response);
    EXPECT_THAT(response.Error("message"), HasSubstr("1048576"));
  }
  EXPECT_TRUE(Serves());
}

TEST_F(HttpErrors, NotHttp) {
  for (const std::string bytes :
       {"\x16\x03\x01\x02\x00\x01\x00\x01\xFC",
        "hello\r\n\r\n",
        "GET /health HTTP/9.9\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET /health HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        "POST /x HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "GET /health HTTP/1.1\r\nA B: c\r\n\r\n"}) {
    HttpClient client(port());
    client.Send(bytes + "\r\n\r\n");
    const HttpResponse response = client.Read();
    if (response.status != 0) {
      EXPECT_EQ(response.status, 400) << bytes;
    }
    EXPECT_TRUE(client.Ends(absl::Seconds(5))) << bytes;
  }
  EXPECT_TRUE(Serves());
}

TEST(HttpKeys, OneOfTheFilesKeysIsNeeded) {
  const std::string path = absl::StrCat(::testing::TempDir(), "keys-", getpid());
  std::ofstream(path) << "# of the team\nsk-one\n\n  sk-two  \n";
  const auto daemon = StartHttp({"--api-key-file=" + path}, "sk-two");
  const int port = daemon->http_port();
  const auto status = [&](absl::string_view route, const std::string& headers) {
    return HttpGet(port, route, headers).status;
  };
  EXPECT_EQ(status("/v1/models", "Authorization: Bearer sk-one\r\n"), 200);
  EXPECT_EQ(status("/v1/models", "authorization: bearer sk-two\r\n"), 200);
  EXPECT_EQ(status("/", ""), 200);
  for (const std::string headers : {"",
                                    "Authorization: Bearer sk-three\r\n",
                                    "Authorization: Bearer sk-on\r\n",
                                    "Authorization: Bearer\r\n",
                                    "Authorization: Basic sk-one\r\n",
                                    "Authorization: sk-one\r\n"}) {
    const HttpResponse response = HttpGet(port, "/v1/models", headers);
    EXPECT_EQ(response.status, 401) << headers;
    EXPECT_EQ(response.Error("code"), "invalid_api_key");
    EXPECT_EQ(response.Header("www-authenticate"), "Bearer");
    EXPECT_EQ(status("/metrics", headers), 401);
    EXPECT_EQ(status("/no/such/route", headers), 401);
    // Load balancers have no key.
    EXPECT_EQ(status("/health", headers), 200);
  }
  // The body of a request without a key is not waited for.
  HttpClient client(port);
  client.Send("POST /v1/completions HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(client.Read().status, 401);
  EXPECT_TRUE(client.Ends(absl::Seconds(5)));
  // Keys are in no log.
  EXPECT_THAT(daemon->Log(), Not(HasSubstr("sk-")));
}

TEST(HttpOrigins, OnlyNamedSitesMayCall) {
  const auto daemon = StartHttp({"--http-allowed-origins=https://chat.example"});
  const int port = daemon->http_port();
  HttpClient client(port);
  client.Send(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nOrigin: https://chat.example\r\n"
      "Access-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: authorization,x-stainless-os\r\n\r\n");
  const HttpResponse asked = client.Read();
  EXPECT_EQ(asked.status, 204);
  EXPECT_EQ(asked.Header("access-control-allow-origin"), "https://chat.example");
  EXPECT_THAT(asked.Header("access-control-allow-methods"), HasSubstr("POST"));
  EXPECT_EQ(asked.Header("access-control-allow-headers"), "authorization,x-stainless-os");
  const HttpResponse ours = HttpGet(port, "/v1/models", "Origin: https://chat.example\r\n");
  EXPECT_EQ(ours.Header("access-control-allow-origin"), "https://chat.example");
  EXPECT_EQ(ours.Header("vary"), "Origin");
  const HttpResponse other = HttpGet(port, "/v1/models", "Origin: https://evil.example\r\n");
  EXPECT_FALSE(other.Has("access-control-allow-origin"));

  const auto any = StartHttp({"--http-allowed-origins=*"});
  EXPECT_EQ(HttpGet(any->http_port(), "/health", "Origin: null\r\n")
                .Header("access-control-allow-origin"),
            "*");
  const auto none = StartHttp({});
  EXPECT_FALSE(HttpGet(none->http_port(), "/health", "Origin: https://a.example\r\n")
                   .Has("access-control-allow-origin"));
}

}  // namespace
}  // namespace pagoda::e2e::http_errors_test
