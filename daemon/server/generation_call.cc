#include "daemon/server/generation_call.h"

#include <chrono>
#include <utility>

#include <grpc/grpc.h>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/server/output_shards.h"
#include "daemon/server/rpc_error.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

// gRPC's timer and ours need not agree to the millisecond on when a deadline has passed.
constexpr int64_t kDeadlineSlackNs = 5'000'000;
// Clients with gRPC's retry policy wait this long before they try again (gRFC A6).
constexpr char kPushbackKey[] = "grpc-retry-pushback-ms";

absl::optional<int64_t> DeadlineNs(const grpc::CallbackServerContext& context, int64_t now_ns) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::nullopt;
  return now_ns + std::chrono::nanoseconds(deadline - std::chrono::system_clock::now()).count();
}

absl::BitGen& Random() {
  thread_local absl::BitGen generator;
  return generator;
}

RejectReason RejectReasonOf(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  if (reason == "LOADING") return RejectReason::kLoading;
  if (reason == "DRAINING") return RejectReason::kDraining;
  if (reason == "PROMPT_TOO_LONG") return RejectReason::kTooLong;
  if (status.code() == absl::StatusCode::kResourceExhausted) return RejectReason::kQueueFull;
  if (reason == "WORKER_LOST") return RejectReason::kWorkerLost;
  // The engine's own: it began to drain after the call had come in.
  if (status.code() == absl::StatusCode::kUnavailable) return RejectReason::kDraining;
  return RejectReason::kInvalid;
}

}  // namespace

GenerationCall::GenerationCall(const CallServices& services,
                               grpc::CallbackServerContext* context,
                               engine::RequestKey key,
                               bool stream)
    : services_(services),
      context_(context),
      key_(key),
      stream_(stream),
      arrival_ns_(services.clock->NowNs()),
      deadline_ns_(DeadlineNs(*context, arrival_ns_)) {
  services_.calls->Begin();
  services_.metrics->open_calls.fetch_add(1, std::memory_order_relaxed);
  services_.metrics->requests_received.fetch_add(1, std::memory_order_relaxed);
}

GenerationCall::~GenerationCall() {
  services_.metrics->open_calls.fetch_sub(1, std::memory_order_relaxed);
  services_.calls->End();
}

bool GenerationCall::DeadlinePassed() const {
  return deadline_ns_.has_value() && services_.clock->NowNs() + kDeadlineSlackNs >= *deadline_ns_;
}

absl::Status GenerationCall::Prepare(const grpc::ByteBuffer& request_bytes,
                                     engine::Request* request) {
  // A request whose client is gone is not worth its tokenisation.
  if (cancelled()) return CallCancelledError();
  const CallOrigin origin = {
      .key = key_,
      .stream = stream_,
      .arrival_ns = arrival_ns_,
      .deadline_ns = deadline_ns_,
      .made_request_id = absl::StrFormat("pagoda-%016x", absl::Uniform<uint64_t>(Random())),
      .drawn_seed = absl::Uniform<uint64_t>(Random())};
  PAGODA_ASSIGN_OR_RETURN(ConvertedRequest converted, Convert(request_bytes, origin));
  const std::string request_id = converted.started.request_id();
  PAGODA_RETURN_IF_ERROR(services_.request_ids->Insert(request_id));
  live_id_ = request_id;
  *request = std::move(converted.request);
  converter_.emplace(services_.model, std::move(converted.started), std::move(converted.echo_text));
  if (DeadlinePassed()) return DeadlinePassedError();
  return absl::OkStatus();
}

void GenerationCall::Admit(const grpc::ByteBuffer& request_bytes) {
  engine::Request request;
  const absl::Status ready = Prepare(request_bytes, &request);
  services_.metrics->tokenize_seconds.Observe(
      static_cast<double>(services_.clock->NowNs() - arrival_ns_) * 1e-9);
  if (!ready.ok()) return End(ready);
  // From Attach on the shard owns the call, which may even be gone when Submit returns.
  const CallServices& services = services_;
  const engine::RequestKey key = key_;
  services.shards->Attach(this);
  services.shards->NoteSubmitted(key, services.engine->Submit(std::move(request)));
}

void GenerationCall::NoteOutput(const engine::OutputDelta& delta) {
  admitted_ = true;
  if (!seen_token_ && !delta.tokens.empty()) {
    seen_token_ = true;
    auto& histogram = stream_ ? services_.metrics->stream_first_token_seconds
                              : services_.metrics->unary_first_token_seconds;
    histogram.Observe(static_cast<double>(services_.clock->NowNs() - arrival_ns_) * 1e-9);
  }
  if (delta.index == 0 && delta.finished.has_value()) reason_ = delta.finished->reason;
}

GenerationCall::Progress GenerationCall::Deliver(engine::OutputDelta delta) {
  NoteOutput(delta);
  return HandleOutput(std::move(delta));
}

void GenerationCall::HandleCancel() {
  cancelled_.store(true, std::memory_order_release);
  services_.shards->NoteCancelled(key_);
}

void GenerationCall::End(absl::Status why) {
  if (absl::IsCancelled(why) && DeadlinePassed()) why = DeadlinePassedError();
  Finish(Close(why));
}

void GenerationCall::EndSlow(absl::string_view what) {
  services_.engine->Cancel(key_);
  services_.metrics->stream_stalls.fetch_add(1, std::memory_order_relaxed);
  const grpc::Status status = Close(SlowReaderError(what));
  // The status would wait behind the messages that nobody reads; resetting the stream is what frees
  // them.
  grpc_call_cancel_with_status(
      context_->c_call(), GRPC_STATUS_RESOURCE_EXHAUSTED, status.error_message().c_str(), nullptr);
  Finish(status);
}

engine::Outcome GenerationCall::OutcomeOf(const absl::Status& status) const {
  if (status.ok()) {
    return reason_ == engine::FinishReason::kLength ? engine::Outcome::kLength
                                                    : engine::Outcome::kStop;
  }
  if (absl::IsCancelled(status)) return engine::Outcome::kCancelled;
  if (absl::IsDeadlineExceeded(status)) return engine::Outcome::kDeadline;
  return admitted_ ? engine::Outcome::kError : engine::Outcome::kRejected;
}

grpc::Status GenerationCall::Close(const absl::Status& status) {
  if (!live_id_.empty()) services_.request_ids->Erase(std::exchange(live_id_, ""));
  const engine::Outcome outcome = OutcomeOf(status);
  services_.metrics->CountFinished(outcome, static_cast<grpc::StatusCode>(status.code()));
  if (outcome == engine::Outcome::kRejected)
    services_.metrics->CountRejected(RejectReasonOf(status));
  if (const auto delay = RetryDelay(status)) {
    context_->AddTrailingMetadata(kPushbackKey, absl::StrCat(absl::ToInt64Milliseconds(*delay)));
  }
  return ToGrpcStatus(status);
}

}  // namespace pagoda::daemon
