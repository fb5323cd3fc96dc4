#include "daemon/server/generation_call.h"

#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_format.h"
#include "daemon/server/constraint_compiler.h"
#include "daemon/server/output_shards.h"
#include "daemon/server/rpc_error.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

// gRPC's timer and ours need not agree to the millisecond on when a deadline has passed.
constexpr int64_t kDeadlineSlackNs = 5'000'000;

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

void CountRefusal(const CallServices& services, Api api, const absl::Status& status) {
  ApiMetrics& metrics = services.metrics->of(api);
  metrics.requests_received.fetch_add(1, std::memory_order_relaxed);
  metrics.CountFinished(engine::Outcome::kRejected, static_cast<grpc::StatusCode>(status.code()));
  services.metrics->CountRejected(RejectReasonOf(status));
  if (services.log != nullptr) {
    services.log->NoteEnded({.api = api},
                            engine::Outcome::kRejected,
                            static_cast<grpc::StatusCode>(status.code()),
                            /*elapsed_ns=*/0);
  }
}

GenerationCall::GenerationCall(const CallServices& services, const Options& options)
    : services_(services),
      metrics_(services.metrics->of(options.api)),
      tenant_(options.caller.tenant),
      key_(options.key),
      stream_(options.stream),
      arrival_ns_(services.clock->NowNs()),
      deadline_ns_(options.deadline_ns),
      logged_({.tenant = tenant_.name, .traceparent = options.traceparent, .api = options.api}) {
  services_.calls->Begin();
  metrics_.open_calls.fetch_add(1, std::memory_order_relaxed);
  metrics_.requests_received.fetch_add(1, std::memory_order_relaxed);
}

GenerationCall::~GenerationCall() {
  metrics_.open_calls.fetch_sub(1, std::memory_order_relaxed);
  services_.calls->End();
}

bool GenerationCall::DeadlinePassed() const {
  return deadline_ns_.has_value() && services_.clock->NowNs() + kDeadlineSlackNs >= *deadline_ns_;
}

absl::Status GenerationCall::Prepare(engine::Request* request,
                                     absl::optional<UncompiledConstraint>* uncompiled) {
  // A request whose client is gone is not worth its tokenisation.
  if (cancelled()) return CallCancelledError();
  const CallOrigin origin = {
      .tenant = tenant_,
      .key = key_,
      .stream = stream_,
      .arrival_ns = arrival_ns_,
      .deadline_ns = deadline_ns_,
      .made_request_id = absl::StrFormat("pagoda-%016x", absl::Uniform<uint64_t>(Random())),
      .drawn_seed = absl::Uniform<uint64_t>(Random()),
      .leaves_compiling = services_.compiler != nullptr};
  PAGODA_ASSIGN_OR_RETURN(ConvertedRequest converted, Convert(origin));
  const std::string request_id = converted.started.request_id();
  std::string name = LiveRequestIds::NameOf(tenant_.name, request_id);
  if (!services_.request_ids->Insert(name, key_)) return RequestIdInUseError(request_id);
  live_name_ = std::move(name);
  *request = std::move(converted.request);
  *uncompiled = std::move(converted.uncompiled);
  converter_.emplace(services_.model, std::move(converted.started), std::move(converted.echo_text));
  if (DeadlinePassed()) return DeadlinePassedError();
  NoteAsked(*request);
  NoteStarted(*request, request_id);
  return absl::OkStatus();
}

void GenerationCall::NoteAsked(const engine::Request& request) {
  const auto rest = static_cast<int32_t>(services_.model->max_context_tokens) -
                    static_cast<int32_t>(request.prompt.size());
  services_.metrics->request_max_tokens.Observe(request.stop.max_tokens.value_or(rest));
  services_.metrics->request_completions.Observe(request.n);
}

void GenerationCall::NoteStarted(const engine::Request& request, std::string request_id) {
  logged_.id = std::move(request_id);
  logged_.num_prompt_tokens = static_cast<int32_t>(request.prompt.size());
  if (services_.log != nullptr)
    services_.log->NoteStarted(logged_, request.stop.max_tokens.value_or(0), request.n);
}

void GenerationCall::Admit() {
  engine::Request request;
  absl::optional<UncompiledConstraint> uncompiled;
  const absl::Status ready = Prepare(&request, &uncompiled);
  services_.metrics->tokenize_seconds.Observe(
      static_cast<double>(services_.clock->NowNs() - arrival_ns_) * 1e-9);
  if (!ready.ok()) return End(ready);
  if (!uncompiled.has_value()) return Submit(std::move(request));
  Compile(std::move(request), *std::move(uncompiled));
}

void GenerationCall::Compile(engine::Request request, UncompiledConstraint uncompiled) {
  const absl::Status status = services_.compiler->Post(
      std::move(uncompiled.source),
      services_.model->constraints.get(),
      &cancelled_,
      [this, field = std::move(uncompiled.field), request = std::move(request)](
          absl::StatusOr<ConstraintCompiler::Compiled> compiled) mutable {
        if (absl::IsInvalidArgument(compiled.status()))
          return End(Restate(FieldError(field, compiled.status().message())));
        if (!compiled.ok()) return End(compiled.status());
        if (DeadlinePassed()) return End(DeadlinePassedError());
        request.sampling.constraint = *std::move(compiled);
        Submit(std::move(request));
      });
  if (!status.ok()) End(status);
}

void GenerationCall::Submit(engine::Request request) {
  // From Attach on the shard owns the call, which may even be gone when Submit returns.
  const CallServices& services = services_;
  const engine::RequestKey key = key_;
  const std::string name = live_name_;
  services.shards->Attach(this);
  services.shards->NoteSubmitted(key, services.engine->Submit(std::move(request)));
  // An abort that came before found nothing to cancel.
  if (services.request_ids->WasAborted(name, key)) services.engine->Cancel(key);
}

void GenerationCall::NoteOutput(const engine::OutputDelta& delta) {
  admitted_ = true;
  if (!seen_token_ && !delta.tokens.empty()) {
    seen_token_ = true;
    auto& histogram = stream_ ? services_.metrics->stream_first_token_seconds
                              : services_.metrics->unary_first_token_seconds;
    histogram.Observe(static_cast<double>(services_.clock->NowNs() - arrival_ns_) * 1e-9);
  }
  logged_.num_output_tokens += static_cast<int64_t>(delta.tokens.size());
  if (delta.started.has_value()) {
    queue_ns_ = delta.started->queue_ns;
    logged_.num_cached_tokens = delta.started->num_cached_tokens;
  }
  if (delta.index == 0 && delta.finished.has_value()) NoteFinished(*delta.finished);
}

void GenerationCall::NoteFinished(const engine::SequenceFinished& finished) {
  reason_ = finished.reason;
  if (finished.first_token_ns == 0) return;
  services_.metrics->inference_seconds.Observe(static_cast<double>(finished.total_ns - queue_ns_) *
                                               1e-9);
  if (finished.num_completion_tokens < 2) return;
  services_.metrics->output_token_seconds.Observe(
      static_cast<double>(finished.total_ns - finished.first_token_ns) * 1e-9 /
      (finished.num_completion_tokens - 1));
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
  Close(why);
  Finish(why);
}

void GenerationCall::EndSlow(absl::string_view what) {
  services_.engine->Cancel(key_);
  metrics_.stream_stalls.fetch_add(1, std::memory_order_relaxed);
  const absl::Status status = SlowReaderError(what);
  Close(status);
  CutOff(status);
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

void GenerationCall::Close(const absl::Status& status) {
  if (!live_name_.empty()) services_.request_ids->Erase(std::exchange(live_name_, ""));
  const engine::Outcome outcome = OutcomeOf(status);
  const auto code = static_cast<grpc::StatusCode>(status.code());
  metrics_.CountFinished(outcome, code);
  if (outcome == engine::Outcome::kRejected)
    services_.metrics->CountRejected(RejectReasonOf(status));
  if (services_.log != nullptr)
    services_.log->NoteEnded(logged_, outcome, code, services_.clock->NowNs() - arrival_ns_);
}

}  // namespace pagoda::daemon
