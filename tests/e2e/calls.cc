#include "tests/e2e/calls.h"

#include <algorithm>
#include <cstring>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e {
namespace {

void SetDeadline(absl::Duration timeout, grpc::ClientContext* context) {
  // A channel that is new, or whose first try came too early, connects while the call waits.
  context->set_wait_for_ready(true);
  context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
}

template <typename Detail>
bool FindDetail(const grpc::Status& status, Detail* detail) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return false;
  for (const google::protobuf::Any& any : details.details()) {
    if (any.UnpackTo(detail)) return true;
  }
  return false;
}

bool SameBits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

bool IsGreedy(const v1::Started& started) { return started.sampling().temperature() == 0.0f; }

// Whether a token of a greedy output could as well have been another.
bool IsNearTie(const CallResult::Sequence& sequence, size_t token) {
  if (token >= sequence.logprobs.size() || sequence.logprobs[token].top_size() < 2) return true;
  const v1::TokenLogprobs& logprobs = sequence.logprobs[token];
  return logprobs.top(0).logprob() - logprobs.top(1).logprob() < kNearTie;
}

}  // namespace

v1::GenerateRequest TextRequest(const std::string& prompt, uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text(prompt);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  return request;
}

v1::GenerateRequest IdsRequest(const std::vector<uint32_t>& prompt, uint32_t max_tokens) {
  v1::GenerateRequest request = TextRequest("", max_tokens);
  request.mutable_prompt()->mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
  return request;
}

v1::StreamGenerateRequest AsStream(const v1::GenerateRequest& request) {
  // The two messages are equal field by field.
  v1::StreamGenerateRequest stream;
  stream.ParseFromString(request.SerializeAsString());
  return stream;
}

bool CallResult::Sequence::SameOutput(const Sequence& expected) const {
  if (!IsExactDevice()) {
    const size_t num_common = std::min(token_ids.size(), expected.token_ids.size());
    for (size_t i = 0; i < num_common; ++i) {
      if (token_ids[i] != expected.token_ids[i]) return !is_greedy || IsNearTie(expected, i);
    }
  }
  if (token_ids != expected.token_ids || text != expected.text) return false;
  if (logprobs.size() != expected.logprobs.size()) return false;
  for (size_t i = 0; i < logprobs.size() && IsExactDevice(); ++i) {
    if (!SameBits(logprobs[i].token().logprob(), expected.logprobs[i].token().logprob())) {
      return false;
    }
  }
  return finished.reason() == expected.finished.reason();
}

CallResult Generate(v1::InferenceService::Stub& stub,
                    const v1::GenerateRequest& request,
                    absl::Duration timeout,
                    bool waits_for_daemon) {
  CallResult result;
  grpc::ClientContext context;
  SetDeadline(timeout, &context);
  context.set_wait_for_ready(waits_for_daemon);
  v1::GenerateResponse response;
  result.status = stub.Generate(&context, request, &response);
  result.started = response.started();
  result.prompt_logprobs.assign(response.prompt_logprobs().begin(),
                                response.prompt_logprobs().end());
  for (int i = 0; i < response.sequences_size(); ++i) {
    const v1::GenerateResponse::Sequence& from = response.sequences(i);
    result.sequences[static_cast<uint32_t>(i)] = {
        from.text(),
        {from.token_ids().begin(), from.token_ids().end()},
        {from.logprobs().begin(), from.logprobs().end()},
        from.finished(),
        1,
        IsGreedy(response.started())};
  }
  return result;
}

CallResult StreamGenerate(v1::InferenceService::Stub& stub,
                          const v1::GenerateRequest& request,
                          absl::Duration timeout) {
  OpenStream stream(stub, request, timeout);
  stream.Finish();
  return stream.result;
}

OpenStream::OpenStream(v1::InferenceService::Stub& stub,
                       const v1::GenerateRequest& request,
                       absl::Duration timeout,
                       bool waits_for_daemon) {
  SetDeadline(timeout, &context_);
  context_.set_wait_for_ready(waits_for_daemon);
  reader_ = stub.StreamGenerate(&context_, AsStream(request));
}

bool OpenStream::Read() {
  v1::StreamGenerateResponse message;
  if (!reader_->Read(&message)) return false;
  ++result.num_messages;
  if (message.has_started()) {
    result.started = message.started();
    ++result.num_started;
  }
  if (message.has_finished()) {
    CallResult::Sequence& sequence = result.sequences[message.finished().index()];
    sequence.finished = message.finished();
    ++sequence.num_finished;
  }
  if (!message.has_delta()) return true;
  const v1::Delta& delta = message.delta();
  CallResult::Sequence& sequence = result.sequences[delta.index()];
  sequence.is_greedy = IsGreedy(result.started);
  sequence.text += delta.text();
  sequence.token_ids.insert(
      sequence.token_ids.end(), delta.token_ids().begin(), delta.token_ids().end());
  sequence.logprobs.insert(
      sequence.logprobs.end(), delta.logprobs().begin(), delta.logprobs().end());
  result.prompt_logprobs.insert(
      result.prompt_logprobs.end(), delta.prompt_logprobs().begin(), delta.prompt_logprobs().end());
  return true;
}

bool OpenStream::ReadFirstToken() {
  while (result.sequences.empty() || result.first().token_ids.empty()) {
    if (!Read()) return false;
  }
  return true;
}

grpc::Status OpenStream::Finish() {
  while (Read()) {
  }
  result.status = reader_->Finish();
  return result.status;
}

std::string ErrorReason(const grpc::Status& status) {
  google::rpc::ErrorInfo info;
  return FindDetail(status, &info) ? info.reason() : "";
}

std::string FirstViolation(const grpc::Status& status) {
  google::rpc::BadRequest bad_request;
  if (!FindDetail(status, &bad_request) || bad_request.field_violations().empty()) return "";
  return bad_request.field_violations(0).field();
}

bool HasRetryInfo(const grpc::Status& status) {
  google::rpc::RetryInfo retry;
  return FindDetail(status, &retry);
}

}  // namespace pagoda::e2e
