#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "daemon/openai/response_shape.h"
#include "daemon/server/access.h"
#include "daemon/server/generation_call.h"
#include "daemon/server/http_message.h"
#include "daemon/server/metrics_collector.h"
#include "daemon/server/serving_state.h"
#include "daemon/server/text_pool.h"

namespace pagoda::daemon {

// A path that is served, by which method, and who may use it: there is none without a class.
struct HttpRoute {
  constexpr HttpRoute(AccessClass access, absl::string_view method, absl::string_view path)
      : access(access), method(method), path(path) {}

  AccessClass access;
  absl::string_view method;
  absl::string_view path;
};

// All of them; what begins with /v1/models/ is as /v1/models.
absl::Span<const HttpRoute> ServedHttpRoutes();

// Which request is answered by what. Immutable; every I/O thread.
class HttpRoutes {
 public:
  // All outlive the routes; before the state is kReady, `services` need not be complete.
  struct Options {
    const CallServices* services = nullptr;
    TextPool* text_pool = nullptr;
    const std::atomic<ServingState>* state = nullptr;
    std::shared_ptr<const MetricsCollector> metrics;
    openai::ReasoningMode reasoning = openai::ReasoningMode::kAuto;
    int64_t created = 0;  // of the model, as /v1/models tells it: Unix seconds
  };

  explicit HttpRoutes(Options options) : options_(std::move(options)) {}

  // Who asks, or why nobody of theirs may: the body is then not worth waiting for.
  absl::StatusOr<Caller> Admit(const HttpRequest& head) const;
  // I/O thread. Answers whom Admit has refused, at once or later. `closes`: the connection ends.
  void Refuse(const HttpRequest& head,
              const absl::Status& why,
              bool closes,
              const std::shared_ptr<HttpPeer>& peer) const;

  // I/O thread. Answers through `peer`, at once or later; returns the exchange where it is told
  // what becomes of the client.
  std::shared_ptr<HttpExchange> Handle(HttpRequest request, std::shared_ptr<HttpPeer> peer) const;

 private:
  using Answer = absl::AnyInvocable<HttpReply()>;

  std::shared_ptr<HttpExchange> HandleGet(const HttpRequest& request,
                                          const std::shared_ptr<HttpPeer>& peer) const;
  std::shared_ptr<HttpExchange> HandlePost(HttpRequest request,
                                           Caller caller,
                                           const std::shared_ptr<HttpPeer>& peer) const;
  std::shared_ptr<HttpExchange> StartGeneration(HttpRequest request,
                                                Caller caller,
                                                openai::Endpoint endpoint,
                                                const std::shared_ptr<HttpPeer>& peer) const;
  // Answers with what a text thread says.
  void AnswerLater(size_t body_bytes, std::shared_ptr<HttpPeer> peer, Answer answer) const;
  HttpReply HealthReply() const;
  HttpReply ModelsReply(absl::string_view path) const;

  const Options options_;
};

}  // namespace pagoda::daemon
