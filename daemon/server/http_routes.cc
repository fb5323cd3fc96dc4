#include "daemon/server/http_routes.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/openai/reply_writer.h"
#include "daemon/server/http_generation.h"
#include "daemon/server/http_text_calls.h"
#include "daemon/server/inference_service.h"
#include "daemon/server/page/page.h"
#include "daemon/server/rpc_error.h"
#include "pagoda_version.h"
#include "prometheus/text_serializer.h"

namespace pagoda::daemon {
namespace {

constexpr char kModels[] = "/v1/models";
constexpr char kPagePath[] = "/";
constexpr std::array<absl::string_view, 6> kGetPaths = {
    kPagePath, "/health", "/ping", "/version", "/metrics", kModels};
// Of them, those that tell nothing: load balancers ask them, and the page asks for a key itself.
constexpr std::array<absl::string_view, 4> kOpenPaths = {kPagePath, "/health", "/ping", "/version"};
constexpr std::array<absl::string_view, 4> kPostPaths = {
    "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"};
// What others with this API have.
constexpr std::array<absl::string_view, 10> kMissingPaths = {"/v1/embeddings",
                                                             "/v1/score",
                                                             "/score",
                                                             "/v1/rerank",
                                                             "/rerank",
                                                             "/pooling",
                                                             "/v1/responses",
                                                             "/v1/moderations",
                                                             "/v1/audio/transcriptions",
                                                             "/v1/images/generations"};

template <size_t kSize>
bool Contains(const std::array<absl::string_view, kSize>& paths, absl::string_view path) {
  return std::find(paths.begin(), paths.end(), path) != paths.end();
}

bool IsGetPath(absl::string_view path) {
  return Contains(kGetPaths, path) || absl::StartsWith(path, absl::StrCat(kModels, "/"));
}

// Pages of other sites can send other types without being asked first whether they may.
bool IsJson(const HttpRequest& request) {
  absl::string_view type = request.content_type;
  type = absl::StripAsciiWhitespace(type.substr(0, type.find(';')));
  return absl::EqualsIgnoreCase(type, "application/json") &&
         (request.content_encoding.empty() ||
          absl::EqualsIgnoreCase(request.content_encoding, "identity"));
}

std::string NewResponseId(openai::Endpoint endpoint) {
  thread_local absl::BitGen generator;
  return absl::StrFormat("%s-%016x%016x",
                         endpoint == openai::Endpoint::kChat ? "chatcmpl" : "cmpl",
                         absl::Uniform<uint64_t>(generator),
                         absl::Uniform<uint64_t>(generator));
}

}  // namespace

bool HttpRoutes::Admits(const HttpRequest& head) const {
  if (options_.keys.empty() || head.method == "OPTIONS" || Contains(kOpenPaths, head.path))
    return true;
  return options_.keys.Accept(head.authorization);
}

std::shared_ptr<HttpExchange> HttpRoutes::Handle(HttpRequest request,
                                                 std::shared_ptr<HttpPeer> peer) const {
  const std::string& method = request.method;
  if (!Admits(request)) {
    peer->Reply(ErrorReply(openai::MissingKeyError()));
  } else if (method == "OPTIONS") {
    // The connection adds what origins are allowed.
    peer->Reply({.status = 204, .content_type = ""});
  } else if (IsGetPath(request.path)) {
    if (method == "GET" || method == "HEAD") return HandleGet(request, peer);
    peer->Reply(ErrorReply(openai::WrongMethodError(method, "GET")));
  } else if (Contains(kPostPaths, request.path)) {
    if (method == "POST") return HandlePost(std::move(request), peer);
    peer->Reply(ErrorReply(openai::WrongMethodError(method, "POST")));
  } else if (Contains(kMissingPaths, request.path)) {
    peer->Reply(ErrorReply(openai::NotImplementedError(
        absl::StrCat(request.path, " is not implemented: this server generates text"))));
  } else {
    peer->Reply(ErrorReply(openai::UnknownRouteError(method, request.path)));
  }
  return nullptr;
}

HttpReply HttpRoutes::HealthReply() const {
  const absl::Status ready = CheckReady(options_.state->load(std::memory_order_acquire));
  if (!ready.ok()) return ErrorReply(openai::ToHttpError(ready));
  return {.content_type = "text/plain"};
}

HttpReply HttpRoutes::ModelsReply(absl::string_view path) const {
  const absl::Status ready = CheckReady(options_.state->load(std::memory_order_acquire));
  if (!ready.ok()) return ErrorReply(openai::ToHttpError(ready));
  const ServedModel& model = *options_.services->model;
  const auto context = static_cast<uint32_t>(model.max_context_tokens);
  if (!absl::ConsumePrefix(&path, absl::StrCat(kModels, "/")))
    return {.body = openai::ModelListJson(model.names, options_.created, context)};
  if (path.empty() || !model.Answers(path))
    return ErrorReply(openai::ToHttpError(ModelNotFoundError(path, model.name())));
  return {.body = openai::ModelJson(path, options_.created, context)};
}

std::shared_ptr<HttpExchange> HttpRoutes::HandleGet(const HttpRequest& request,
                                                    const std::shared_ptr<HttpPeer>& peer) const {
  if (request.path == "/health" || request.path == "/ping") {
    peer->Reply(HealthReply());
  } else if (request.path == kPagePath) {
    peer->Reply({.content_type = "text/html; charset=utf-8",
                 .body = std::string(Page()),
                 .headers = {{"Content-Security-Policy", kPagePolicy},
                             {"X-Content-Type-Options", "nosniff"},
                             {"Cache-Control", "no-cache"}}});
  } else if (request.path == "/version") {
    peer->Reply({.body = absl::StrCat("{\"version\":\"", PAGODA_VERSION, "\"}")});
  } else if (request.path == "/metrics") {
    AnswerLater(0, peer, [metrics = options_.metrics]() -> HttpReply {
      return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
              .body = prometheus::TextSerializer().Serialize(metrics->Collect())};
    });
  } else {
    peer->Reply(ModelsReply(request.path));
  }
  return nullptr;
}

std::shared_ptr<HttpExchange> HttpRoutes::HandlePost(HttpRequest request,
                                                     const std::shared_ptr<HttpPeer>& peer) const {
  if (!IsJson(request)) {
    peer->Reply(ErrorReply(openai::WrongContentTypeError()));
    return nullptr;
  }
  if (request.path == "/v1/completions")
    return StartGeneration(std::move(request), openai::Endpoint::kCompletions, peer);
  if (request.path == "/v1/chat/completions")
    return StartGeneration(std::move(request), openai::Endpoint::kChat, peer);
  const absl::Status ready = CheckReady(options_.state->load(std::memory_order_acquire));
  if (!ready.ok()) {
    peer->Reply(ErrorReply(openai::ToHttpError(ready)));
    return nullptr;
  }
  const bool encodes = request.path == "/tokenize";
  AnswerLater(request.body.size(),
              peer,
              [model = options_.services->model, encodes, body = std::move(request.body)] {
                return encodes ? TokenizeReply(body, *model) : DetokenizeReply(body, *model);
              });
  return nullptr;
}

void HttpRoutes::AnswerLater(size_t body_bytes,
                             std::shared_ptr<HttpPeer> peer,
                             Answer answer) const {
  const absl::Status status =
      options_.text_pool->Post(body_bytes, [peer, answer = std::move(answer)]() mutable {
        peer->Post([peer, reply = answer()]() mutable { peer->Reply(std::move(reply)); });
      });
  if (!status.ok()) peer->Reply(ErrorReply(openai::ToHttpError(status)));
}

std::shared_ptr<HttpExchange> HttpRoutes::StartGeneration(
    HttpRequest request, openai::Endpoint endpoint, const std::shared_ptr<HttpPeer>& peer) const {
  absl::Status status = CheckReady(options_.state->load(std::memory_order_acquire));
  std::shared_ptr<HttpGeneration> generation;
  if (status.ok()) {
    generation = std::make_shared<HttpGeneration>(
        options_.services,
        peer,
        HttpGeneration::Options{.endpoint = endpoint,
                                .reasoning = options_.reasoning,
                                .id = NewResponseId(endpoint),
                                .created = absl::ToUnixSeconds(absl::Now())});
    const size_t body_bytes = request.body.size();
    status = options_.text_pool->Post(
        body_bytes, [generation, body = std::move(request.body)] { generation->Run(body); });
  }
  if (status.ok()) return generation;
  CountRefusal(*options_.services, Api::kHttp, status);
  peer->Reply(ErrorReply(openai::ToHttpError(status)));
  return nullptr;
}

}  // namespace pagoda::daemon
