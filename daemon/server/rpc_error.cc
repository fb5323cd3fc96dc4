#include "daemon/server/rpc_error.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/errors.h"
#include "google/protobuf/any.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace pagoda::daemon {
namespace {

constexpr absl::string_view kDomain = "pagoda.dev";
// Most of a client's bytes that an error repeats; enough to recognise a value.
constexpr size_t kMaxExtractBytes = 48;
// A field path can be long when it holds a map's key; a message when the engine's catalogue grows.
constexpr size_t kMaxFieldBytes = 128;
constexpr size_t kMaxDescriptionBytes = 512;
constexpr size_t kMaxMessageBytes = 1024;
// The rest is counted: a client that gets so many wrong needs no full list.
constexpr size_t kMaxViolations = 8;
// Loading a model or a place in the queue takes about this long to come.
constexpr absl::Duration kShortRetryDelay = absl::Seconds(1);
// A restart does.
constexpr absl::Duration kRestartRetryDelay = absl::Seconds(5);

template <typename Detail>
std::string TypeUrl() {
  return absl::StrCat("type.googleapis.com/", Detail::descriptor()->full_name());
}

template <typename Detail>
void AddDetail(const Detail& detail, absl::Status* status) {
  status->SetPayload(TypeUrl<Detail>(), absl::Cord(detail.SerializeAsString()));
}

google::rpc::ErrorInfo MakeErrorInfo(absl::string_view reason) {
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain(std::string(kDomain));
  return info;
}

absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message) {
  absl::Status status(code, message);
  AddDetail(MakeErrorInfo(reason), &status);
  return status;
}

void AddRetryDelay(absl::Duration delay, absl::Status* status) {
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(delay));
  retry.mutable_retry_delay()->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(delay % absl::Seconds(1))));
  AddDetail(retry, status);
}

absl::Status MakeRetryableError(absl::StatusCode code,
                                absl::string_view reason,
                                absl::string_view message,
                                absl::Duration delay) {
  absl::Status status = MakeError(code, reason, message);
  AddRetryDelay(delay, &status);
  return status;
}

// ErrorInfo.reason of a status that the engine made.
absl::string_view ReasonOfCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return "INVALID_REQUEST";
    case absl::StatusCode::kResourceExhausted:
      return "QUEUE_FULL";
    case absl::StatusCode::kUnavailable:
      return "ENGINE_UNAVAILABLE";
    case absl::StatusCode::kCancelled:
      return "CANCELLED";
    case absl::StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case absl::StatusCode::kUnimplemented:
      return "NOT_IMPLEMENTED";
    default:
      return "INTERNAL_ERROR";
  }
}

}  // namespace

absl::Status InvalidFieldsError(const std::vector<FieldViolation>& violations,
                                absl::string_view reason) {
  std::string message =
      absl::StrCat(violations.front().field, ": ", violations.front().description);
  if (violations.size() > 1) absl::StrAppend(&message, " (and ", violations.size() - 1, " more)");
  absl::Status status = MakeError(absl::StatusCode::kInvalidArgument, reason, message);
  google::rpc::BadRequest bad_request;
  for (size_t i = 0; i < std::min(violations.size(), kMaxViolations); ++i) {
    auto* violation = bad_request.add_field_violations();
    violation->set_field(violations[i].field.substr(0, kMaxFieldBytes));
    violation->set_description(violations[i].description.substr(0, kMaxDescriptionBytes));
  }
  AddDetail(bad_request, &status);
  return status;
}

absl::Status PromptTooLongError(absl::string_view field, absl::string_view description) {
  return InvalidFieldsError({{std::string(field), std::string(description)}}, "PROMPT_TOO_LONG");
}

absl::Status MalformedMessageError(absl::string_view message_type) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   "MALFORMED_MESSAGE",
                   absl::StrCat("the request is not a well-formed ", message_type));
}

absl::Status MalformedGzipError() {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   "MALFORMED_MESSAGE",
                   "the request is not well-formed gzip");
}

absl::Status MessageTooLargeError(size_t max_bytes) {
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      "MESSAGE_TOO_LARGE",
      absl::StrCat("the request inflates to more than the limit of ", max_bytes, " bytes"));
}

absl::Status UnauthenticatedError() {
  return MakeError(absl::StatusCode::kUnauthenticated,
                   "INVALID_API_KEY",
                   "expected Authorization: Bearer with a key of this server");
}

absl::Status WrongAccessClassError() {
  return MakeError(absl::StatusCode::kPermissionDenied,
                   "WRONG_ACCESS_CLASS",
                   "the key that is shown does not allow this call");
}

absl::Status ModelNotFoundError(absl::string_view name, absl::string_view served_name) {
  absl::Status status = MakeError(
      absl::StatusCode::kNotFound,
      "MODEL_NOT_FOUND",
      absl::StrCat("model: ", QuotedExtract(name), " is not served here; ", served_name, " is"));
  google::rpc::ResourceInfo resource;
  resource.set_resource_type("pagoda.dev/Model");
  resource.set_resource_name(QuotedExtract(name));
  resource.set_description("not served by this daemon");
  AddDetail(resource, &status);
  return status;
}

absl::Status RequestIdInUseError(absl::string_view request_id) {
  return MakeError(
      absl::StatusCode::kAlreadyExists,
      "REQUEST_ID_IN_USE",
      absl::StrCat(
          "request_id: ", QuotedExtract(request_id), " names a request that is still running"));
}

absl::Status NoTokenizerError(absl::string_view method) {
  return MakeError(
      absl::StatusCode::kFailedPrecondition,
      "NO_TOKENIZER",
      absl::StrCat(method, ": the model has no tokenizer.json; it is served for token ids only"));
}

absl::Status TextQueueFullError(size_t num_waiting, absl::string_view purpose) {
  return MakeRetryableError(
      absl::StatusCode::kResourceExhausted,
      "QUEUE_FULL",
      absl::StrCat(num_waiting, " requests wait to be ", purpose, "; try again later"),
      kShortRetryDelay);
}

absl::Status SlowReaderError(absl::string_view what) {
  return MakeError(absl::StatusCode::kResourceExhausted,
                   "SLOW_READER",
                   absl::StrCat("the stream is not read fast enough: ", what));
}

absl::Status LoadingError() {
  return MakeRetryableError(absl::StatusCode::kUnavailable,
                            "LOADING",
                            "the model is still being loaded",
                            kShortRetryDelay);
}

absl::Status RecoveringError() {
  return MakeRetryableError(absl::StatusCode::kUnavailable,
                            "RECOVERING",
                            "the workers do not compute, or are being replaced",
                            kShortRetryDelay);
}

absl::Status DrainingError() {
  return MakeRetryableError(absl::StatusCode::kUnavailable,
                            "DRAINING",
                            "the daemon is shutting down",
                            kRestartRetryDelay);
}

absl::Status WorkerLostError() {
  return MakeRetryableError(absl::StatusCode::kUnavailable,
                            "WORKER_LOST",
                            "the model's worker process is gone",
                            kRestartRetryDelay);
}

absl::Status CallCancelledError() {
  return MakeError(absl::StatusCode::kCancelled, "CANCELLED", "the client cancelled the call");
}

absl::Status DeadlinePassedError() {
  return MakeError(absl::StatusCode::kDeadlineExceeded,
                   "DEADLINE_EXCEEDED",
                   "the call's deadline passed before it was queued");
}

absl::Status InternalError() {
  return MakeError(
      absl::StatusCode::kInternal, "INTERNAL_ERROR", "internal error; the daemon's log says more");
}

absl::optional<absl::Duration> RetryDelay(const absl::Status& status) {
  if (const auto payload = status.GetPayload(TypeUrl<google::rpc::RetryInfo>())) {
    google::rpc::RetryInfo retry;
    if (retry.ParseFromString(std::string(*payload))) {
      return absl::Seconds(retry.retry_delay().seconds()) +
             absl::Nanoseconds(retry.retry_delay().nanos());
    }
  }
  if (const auto payload = status.GetPayload(engine::kRetryAfterPayload)) {
    int64_t ns = 0;
    if (absl::SimpleAtoi(std::string(*payload), &ns)) return absl::Nanoseconds(ns);
  }
  // A status with other details says by their absence that a retry does not help.
  if (status.GetPayload(TypeUrl<google::rpc::ErrorInfo>())) return absl::nullopt;
  if (status.code() == absl::StatusCode::kResourceExhausted) return kShortRetryDelay;
  if (status.code() == absl::StatusCode::kUnavailable) return kRestartRetryDelay;
  return absl::nullopt;
}

std::vector<FieldViolation> FieldViolations(const absl::Status& status) {
  std::vector<FieldViolation> out;
  google::rpc::BadRequest bad_request;
  const auto payload = status.GetPayload(TypeUrl<google::rpc::BadRequest>());
  if (!payload.has_value() || !bad_request.ParseFromString(std::string(*payload))) return out;
  for (const auto& violation : bad_request.field_violations())
    out.push_back({violation.field(), violation.description()});
  return out;
}

std::string ErrorReason(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  const auto payload = status.GetPayload(TypeUrl<google::rpc::ErrorInfo>());
  if (!payload.has_value() || !info.ParseFromString(std::string(*payload))) return "";
  return info.reason();
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());
  const std::string message(status.message().substr(0, kMaxMessageBytes));

  absl::Status complete = status;
  if (const auto delay = RetryDelay(status)) AddRetryDelay(*delay, &complete);
  complete.ErasePayload(engine::kRetryAfterPayload);
  if (!complete.GetPayload(TypeUrl<google::rpc::ErrorInfo>())) {
    AddDetail(MakeErrorInfo(ReasonOfCode(status.code())), &complete);
  }

  google::rpc::Status wire;
  wire.set_code(code);
  wire.set_message(message);
  complete.ForEachPayload([&wire](absl::string_view type_url, const absl::Cord& payload) {
    google::protobuf::Any detail;
    detail.set_type_url(std::string(type_url));
    detail.set_value(std::string(payload));
    *wire.add_details() = std::move(detail);
    if (wire.ByteSizeLong() > kMaxErrorDetailBytes) wire.mutable_details()->RemoveLast();
  });
  return grpc::Status(code, message, wire.SerializeAsString());
}

absl::string_view GrpcCodeName(int code) {
  static constexpr std::array<absl::string_view, 17> kNames = {"OK",
                                                               "CANCELLED",
                                                               "UNKNOWN",
                                                               "INVALID_ARGUMENT",
                                                               "DEADLINE_EXCEEDED",
                                                               "NOT_FOUND",
                                                               "ALREADY_EXISTS",
                                                               "PERMISSION_DENIED",
                                                               "RESOURCE_EXHAUSTED",
                                                               "FAILED_PRECONDITION",
                                                               "ABORTED",
                                                               "OUT_OF_RANGE",
                                                               "UNIMPLEMENTED",
                                                               "INTERNAL",
                                                               "UNAVAILABLE",
                                                               "DATA_LOSS",
                                                               "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < kNames.size() ? kNames[index] : absl::string_view("UNKNOWN");
}

std::string QuotedExtract(absl::string_view bytes) {
  const bool cut = bytes.size() > kMaxExtractBytes;
  return absl::StrCat(
      "\"", absl::CHexEscape(bytes.substr(0, kMaxExtractBytes)), cut ? "..." : "", "\"");
}

}  // namespace pagoda::daemon
