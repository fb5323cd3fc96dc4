#include "daemon/server/http_generation.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "daemon/openai/reply_writer.h"
#include "daemon/openai/stream_writer.h"
#include "daemon/server/rpc_error.h"
#include "daemon/server/stream_call.h"
#include "daemon/server/unary_call.h"

namespace pagoda::daemon {
namespace {

uint32_t NumChoices(const v1::GenerateRequest& call) {
  return call.output().has_n() ? call.output().n() : 1;
}

// Of the longest stop string that the text leaves out.
size_t MaxStopBytes(const v1::StopConditions& stopping) {
  size_t most = 0;
  if (stopping.include_stop()) return most;
  for (const std::string& stop : stopping.stop()) most = std::max(most, stop.size());
  return most;
}

}  // namespace

// Streams as events.
class HttpGeneration::StreamingCall final : public StreamCall {
 public:
  StreamingCall(HttpGeneration* generation, size_t index, v1::GenerateRequest message)
      : StreamCall(generation->services_,
                   {.caller = generation->options_.caller,
                    .key = generation->services_.calls->NextKey(),
                    .stream = true,
                    .api = Api::kHttp,
                    .traceparent = generation->options_.traceparent},
                   /*most_messages_per_write=*/SIZE_MAX),
        generation_(*generation),
        index_(index),
        message_(std::move(message)) {}

 private:
  absl::StatusOr<ConvertedRequest> Convert(const CallOrigin& origin) override {
    auto converted = ConvertRequest(message_, *services().model, origin);
    // Only now is it known that there are no more choices than the server allows.
    const uint32_t num_choices = NumChoices(message_);
    message_.Clear();
    if (converted.ok()) {
      writer_ = std::make_unique<openai::StreamWriter>(
          &generation_.shape_, static_cast<uint32_t>(index_) * num_choices, num_choices);
    }
    return converted;
  }

  std::string EventsOf(const Messages& messages) {
    std::string events;
    for (const v1::StreamGenerateResponse& message : messages) writer_->Append(message, &events);
    return events;
  }

  void Write(Messages messages, bool /*more*/) override {
    std::string events = EventsOf(messages);
    if (events.empty()) return HandleWritten();
    generation_.PostWrite(index_, std::move(events));
  }
  void WriteLast(Messages messages) override {
    std::string events = EventsOf(messages);
    generation_.PostEnd(index_, std::move(events), absl::OkStatus(), writer_->usage());
  }
  void Finish(const absl::Status& status) override {
    generation_.PostEnd(
        index_, "", status, writer_ == nullptr ? openai::UsageTotals() : writer_->usage());
  }
  void CutOff(const absl::Status& status) override { generation_.PostCutOff(index_, status); }

  HttpGeneration& generation_;
  const size_t index_;
  v1::GenerateRequest message_;  // until it is converted
  std::unique_ptr<openai::StreamWriter> writer_;
};

// Answers whole.
class HttpGeneration::GatheringCall final : public UnaryCall {
 public:
  GatheringCall(HttpGeneration* generation, size_t index, v1::GenerateRequest message)
      : UnaryCall(generation->services_,
                  {.caller = generation->options_.caller,
                   .key = generation->services_.calls->NextKey(),
                   .stream = false,
                   .api = Api::kHttp,
                   .traceparent = generation->options_.traceparent}),
        generation_(*generation),
        index_(index),
        num_choices_(NumChoices(message)),
        message_(std::move(message)) {}

 private:
  absl::StatusOr<ConvertedRequest> Convert(const CallOrigin& origin) override {
    auto converted = ConvertRequest(message_, *services().model, origin);
    message_.Clear();
    return converted;
  }
  void Reply(v1::GenerateResponse reply) override {
    openai::UsageTotals usage;
    const uint32_t first = static_cast<uint32_t>(index_) * num_choices_;
    std::string choices = openai::ChoicesJson(reply, generation_.shape_, first, &usage);
    generation_.PostEnd(index_, std::move(choices), absl::OkStatus(), usage);
  }
  void Finish(const absl::Status& status) override { generation_.PostEnd(index_, "", status, {}); }
  void CutOff(const absl::Status& status) override { generation_.PostCutOff(index_, status); }

  HttpGeneration& generation_;
  const size_t index_;
  const uint32_t num_choices_;
  v1::GenerateRequest message_;  // until it is converted
};

HttpGeneration::HttpGeneration(const CallServices* services,
                               std::shared_ptr<HttpPeer> peer,
                               Options options)
    : services_(*services), peer_(std::move(peer)), options_(std::move(options)) {}

HttpGeneration::~HttpGeneration() = default;

void HttpGeneration::Run(const std::string& body) {
  auto request = options_.endpoint == openai::Endpoint::kChat ? openai::ParseChat(body)
                                                              : openai::ParseCompletion(body);
  if (!request.ok()) {
    CountRefusal(services_, Api::kHttp, request.status());
    peer_->Post(
        [self = shared_from_this(), status = request.status()] { self->EndWithError(status); });
    return;
  }
  const v1::GenerateRequest& first = request->calls.front();
  shape_ = {.endpoint = options_.endpoint,
            .id = options_.id,
            .model = services_.model->name(),
            .created = options_.created,
            .include_usage = request->include_usage,
            .continuous_usage = request->continuous_usage,
            .return_token_ids = request->return_token_ids,
            .echo = first.output().echo(),
            .logprobs = first.output().has_logprobs(),
            .max_stop_bytes = MaxStopBytes(first.stopping()),
            .output = std::move(request->shape),
            .reasoning = options_.reasoning,
            .tokenizer = services_.model->tokenizer.get()};
  is_stream_ = request->stream;
  for (v1::GenerateRequest& message : request->calls) {
    const size_t index = calls_.size();
    if (is_stream_) {
      calls_.push_back(std::make_unique<StreamingCall>(this, index, std::move(message)));
    } else {
      calls_.push_back(std::make_unique<GatheringCall>(this, index, std::move(message)));
    }
  }
  peer_->Post([self = shared_from_this()] { self->HandlePrepared(); });
  for (const auto& call : calls_) call->Admit();
}

// Each holds the peer: the task may run, and drop everything else, before Post returns.
void HttpGeneration::PostWrite(size_t call, std::string events) {
  const std::shared_ptr<HttpPeer> peer = peer_;
  peer->Post([self = shared_from_this(), call, events = std::move(events)] {
    self->HandleWrite(call, events);
  });
}

void HttpGeneration::PostEnd(size_t call,
                             std::string last,
                             absl::Status status,
                             openai::UsageTotals usage) {
  const std::shared_ptr<HttpPeer> peer = peer_;
  peer->Post([self = shared_from_this(),
              call,
              last = std::move(last),
              status = std::move(status),
              usage]() mutable {
    self->usage_.Add(usage);
    self->HandleEnd(call, std::move(last), status);
  });
}

void HttpGeneration::PostCutOff(size_t call, absl::Status status) {
  const std::shared_ptr<HttpPeer> peer = peer_;
  peer->Post([self = shared_from_this(), call, status = std::move(status)] {
    self->client_gone_ = true;
    self->HandleEnd(call, "", status);
  });
}

void HttpGeneration::HandlePrepared() {
  is_prepared_ = true;
  ended_.resize(calls_.size(), false);
  awaits_write_.resize(calls_.size(), false);
  choices_.resize(calls_.size());
  num_running_ = calls_.size();
  if (client_gone_) CancelRest();
}

void HttpGeneration::HandleClientGone() {
  client_gone_ = true;
  if (is_prepared_) CancelRest();
}

void HttpGeneration::CancelRest() {
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (!ended_[i]) calls_[i]->HandleCancel();
  }
}

void HttpGeneration::HandleQuiet() {
  if (!is_stream_ || !is_prepared_ || client_gone_) return;
  BeginStream();
  peer_->Write(openai::kHeartbeat);
}

void HttpGeneration::BeginStream() {
  if (!std::exchange(has_begun_, true)) peer_->BeginStream();
}

void HttpGeneration::HandleWrite(size_t call, absl::string_view events) {
  if (!client_gone_ && error_.ok()) {
    BeginStream();
    if (!peer_->Write(events)) {
      awaits_write_[call] = true;
      return;
    }
  }
  NoteWritten(call);
}

void HttpGeneration::HandleWritten() {
  for (size_t i = 0; i < awaits_write_.size(); ++i) {
    if (awaits_write_[i]) NoteWritten(i);
  }
}

void HttpGeneration::NoteWritten(size_t call) {
  awaits_write_[call] = false;
  if (!ended_[call]) static_cast<StreamingCall&>(*calls_[call]).HandleWritten();
}

void HttpGeneration::HandleEnd(size_t call, std::string last, const absl::Status& status) {
  ended_[call] = true;
  --num_running_;
  if (!status.ok() && error_.ok()) {
    error_ = status;
    CancelRest();
  }
  if (!is_stream_) {
    choices_[call] = std::move(last);
  } else if (!last.empty() && !client_gone_ && error_.ok()) {
    BeginStream();
    if (num_running_ > 0) {
      peer_->Write(last);
    } else {
      if (shape_.include_usage) last += openai::UsageEvent(shape_, usage_);
      peer_->EndStream(last + openai::kDoneEvent, /*closes=*/false);
      return;
    }
  }
  if (num_running_ == 0) End();
}

void HttpGeneration::End() {
  if (client_gone_) return peer_->Abort();
  if (!error_.ok()) return EndWithError(error_);
  if (!is_stream_) return peer_->Reply({.body = openai::ResponseJson(shape_, choices_, usage_)});
  BeginStream();
  std::string last = shape_.include_usage ? openai::UsageEvent(shape_, usage_) : "";
  peer_->EndStream(last + openai::kDoneEvent, /*closes=*/false);
}

void HttpGeneration::EndWithError(const absl::Status& status) {
  if (client_gone_) return peer_->Abort();
  const openai::HttpError error = openai::ToHttpError(status, shape_.output.form_field);
  if (!has_begun_) return peer_->Reply(ErrorReply(error));
  // The status has been sent: no [DONE], so that nobody takes what came for the whole.
  peer_->EndStream(openai::ErrorEvent(error.ToJson()), /*closes=*/true);
}

}  // namespace pagoda::daemon
