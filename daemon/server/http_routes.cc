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
// What is public tells nothing: load balancers ask it, and the page asks for a key itself.
constexpr std::array<HttpRoute, 10> kRoutes = {{
    {AccessClass::kPublic, "GET", kPagePath},
    {AccessClass::kPublic, "GET", "/health"},
    {AccessClass::kPublic, "GET", "/ping"},
    {AccessClass::kPublic, "GET", "/version"},
    {AccessClass::kMetrics, "GET", "/metrics"},
    {AccessClass::kUser, "GET", kModels},
    {AccessClass::kUser, "POST", "/v1/completions"},
    {AccessClass::kUser, "POST", "/v1/chat/completions"},
    {AccessClass::kUser, "POST", "/tokenize"},
    {AccessClass::kUser, "POST", "/detokenize"},
}};
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

const HttpRoute* FindRoute(absl::string_view path) {
  if (absl::StartsWith(path, absl::StrCat(kModels, "/"))) path = kModels;
  const auto found = std::find_if(kRoutes.begin(), kRoutes.end(), [path](const HttpRoute& route) {
    return route.path == path;
  });
  return found == kRoutes.end() ? nullptr : &*found;
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

absl::Span<const HttpRoute> ServedHttpRoutes() { return kRoutes; }

absl::StatusOr<Caller> HttpRoutes::Admit(const HttpRequest& head) const {
  // What is served is for users to know. Browsers ask by OPTIONS before they show a key.
  const HttpRoute* const route = FindRoute(head.path);
  AccessClass wanted = route == nullptr ? AccessClass::kUser : route->access;
  if (head.method == "OPTIONS") wanted = AccessClass::kPublic;
  return options_.services->access->Check(wanted, head.authorization);
}

void HttpRoutes::Refuse(const HttpRequest& head,
                        const absl::Status& why,
                        bool closes,
                        const std::shared_ptr<HttpPeer>& peer) const {
  HttpReply reply = ErrorReply(openai::ToHttpError(why));
  reply.closes = closes;
  options_.services->access->Refuse(why, head.peer, [peer, reply = std::move(reply)]() mutable {
    peer->Post([peer, reply = std::move(reply)]() mutable { peer->Reply(std::move(reply)); });
  });
}

std::shared_ptr<HttpExchange> HttpRoutes::Handle(HttpRequest request,
                                                 std::shared_ptr<HttpPeer> peer) const {
  const std::string& method = request.method;
  const HttpRoute* const route = FindRoute(request.path);
  absl::StatusOr<Caller> caller = Admit(request);
  if (!caller.ok()) {
    Refuse(request, caller.status(), /*closes=*/false, peer);
  } else if (method == "OPTIONS") {
    // The connection adds what origins are allowed.
    peer->Reply({.status = 204, .content_type = ""});
  } else if (route != nullptr) {
    const bool is_its = method == route->method || (method == "HEAD" && route->method == "GET");
    if (is_its && route->method == "GET") return HandleGet(request, peer);
    if (is_its) return HandlePost(std::move(request), *std::move(caller), peer);
    peer->Reply(ErrorReply(openai::WrongMethodError(method, route->method)));
  } else if (Contains(kMissingPaths, request.path)) {
    peer->Reply(ErrorReply(openai::NotImplementedError(
        absl::StrCat(request.path, " is not implemented: this server generates text"))));
  } else {
    peer->Reply(ErrorReply(openai::UnknownRouteError(method, request.path)));
  }
  return nullptr;
}

HttpReply HttpRoutes::HealthReply() const {
  const ServingState state = options_.state->load(std::memory_order_acquire);
  const absl::Status ready =
      state == ServingState::kRecovering ? RecoveringError() : CheckReady(state);
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
                                                     Caller caller,
                                                     const std::shared_ptr<HttpPeer>& peer) const {
  if (!IsJson(request)) {
    peer->Reply(ErrorReply(openai::WrongContentTypeError()));
    return nullptr;
  }
  if (request.path == "/v1/completions")
    return StartGeneration(
        std::move(request), std::move(caller), openai::Endpoint::kCompletions, peer);
  if (request.path == "/v1/chat/completions")
    return StartGeneration(std::move(request), std::move(caller), openai::Endpoint::kChat, peer);
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
    HttpRequest request,
    Caller caller,
    openai::Endpoint endpoint,
    const std::shared_ptr<HttpPeer>& peer) const {
  absl::Status status = CheckReady(options_.state->load(std::memory_order_acquire));
  std::shared_ptr<HttpGeneration> generation;
  if (status.ok()) {
    generation = std::make_shared<HttpGeneration>(
        options_.services,
        peer,
        HttpGeneration::Options{.caller = std::move(caller),
                                .endpoint = endpoint,
                                .reasoning = options_.reasoning,
                                .id = NewResponseId(endpoint),
                                .traceparent = request.traceparent,
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
