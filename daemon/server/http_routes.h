#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "daemon/openai/response_shape.h"
#include "daemon/server/api_keys.h"
#include "daemon/server/generation_call.h"
#include "daemon/server/http_message.h"
#include "daemon/server/metrics_collector.h"
#include "daemon/server/serving_state.h"
#include "daemon/server/text_pool.h"

namespace pagoda::daemon {

// Which request is answered by what. Immutable; every I/O thread.
class HttpRoutes {
 public:
  // All outlive the routes; before the state is kReady, `services` need not be complete.
  struct Options {
    const CallServices* services = nullptr;
    TextPool* text_pool = nullptr;
    const std::atomic<ServingState>* state = nullptr;
    std::shared_ptr<const MetricsCollector> metrics;
    ApiKeys keys;
    openai::ReasoningMode reasoning = openai::ReasoningMode::kAuto;
    int64_t created = 0;  // of the model, as /v1/models tells it: Unix seconds
  };

  explicit HttpRoutes(Options options) : options_(std::move(options)) {}

  // Whether the request may be read further: its body is not worth waiting for without a key.
  bool Admits(const HttpRequest& head) const;

  // I/O thread. Answers through `peer`, at once or later; returns the exchange where it is told
  // what becomes of the client.
  std::shared_ptr<HttpExchange> Handle(HttpRequest request, std::shared_ptr<HttpPeer> peer) const;

 private:
  using Answer = absl::AnyInvocable<HttpReply()>;

  std::shared_ptr<HttpExchange> HandleGet(const HttpRequest& request,
                                          const std::shared_ptr<HttpPeer>& peer) const;
  std::shared_ptr<HttpExchange> HandlePost(HttpRequest request,
                                           const std::shared_ptr<HttpPeer>& peer) const;
  std::shared_ptr<HttpExchange> StartGeneration(HttpRequest request,
                                                openai::Endpoint endpoint,
                                                const std::shared_ptr<HttpPeer>& peer) const;
  // Answers with what a text thread says.
  void AnswerLater(size_t body_bytes, std::shared_ptr<HttpPeer> peer, Answer answer) const;
  HttpReply HealthReply() const;
  HttpReply ModelsReply(absl::string_view path) const;

  const Options options_;
};

}  // namespace pagoda::daemon
