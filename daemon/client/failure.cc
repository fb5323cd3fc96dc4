#include "daemon/client/failure.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace pagoda::daemon {
namespace {

absl::string_view CodeName(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::OK:
      return "OK";
    case grpc::StatusCode::CANCELLED:
      return "CANCELLED";
    case grpc::StatusCode::INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return "DEADLINE_EXCEEDED";
    case grpc::StatusCode::NOT_FOUND:
      return "NOT_FOUND";
    case grpc::StatusCode::ALREADY_EXISTS:
      return "ALREADY_EXISTS";
    case grpc::StatusCode::PERMISSION_DENIED:
      return "PERMISSION_DENIED";
    case grpc::StatusCode::UNAUTHENTICATED:
      return "UNAUTHENTICATED";
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return "RESOURCE_EXHAUSTED";
    case grpc::StatusCode::FAILED_PRECONDITION:
      return "FAILED_PRECONDITION";
    case grpc::StatusCode::ABORTED:
      return "ABORTED";
    case grpc::StatusCode::OUT_OF_RANGE:
      return "OUT_OF_RANGE";
    case grpc::StatusCode::UNIMPLEMENTED:
      return "UNIMPLEMENTED";
    case grpc::StatusCode::INTERNAL:
      return "INTERNAL";
    case grpc::StatusCode::UNAVAILABLE:
      return "UNAVAILABLE";
    case grpc::StatusCode::DATA_LOSS:
      return "DATA_LOSS";
    default:
      return "UNKNOWN";
  }
}

// What a status carries beside code and message; empty where it carries nothing.
struct Details {
  google::rpc::BadRequest bad_request;
  google::rpc::ErrorInfo error_info;
  google::rpc::RetryInfo retry_info;
};

Details ReadDetails(const grpc::Status& status) {
  Details details;
  google::rpc::Status rich;
  if (!rich.ParseFromString(status.error_details())) return details;
  for (const google::protobuf::Any& any : rich.details()) {
    any.UnpackTo(&details.bad_request) || any.UnpackTo(&details.error_info) ||
        any.UnpackTo(&details.retry_info);
  }
  return details;
}

}  // namespace

ClientExit ExitOf(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return ClientExit::kOk;
    case grpc::StatusCode::CANCELLED:
      return ClientExit::kInterrupted;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return ClientExit::kDeadline;
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
    case grpc::StatusCode::ABORTED:
      return ClientExit::kUnavailable;
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::ALREADY_EXISTS:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::OUT_OF_RANGE:
    case grpc::StatusCode::UNIMPLEMENTED:
      return ClientExit::kRefused;
    default:
      return ClientExit::kServerFailed;
  }
}

std::string DescribeFailure(const grpc::Status& status, absl::string_view address) {
  const Details details = ReadDetails(status);
  std::string text =
      absl::StrCat("pagoda: ", CodeName(status.error_code()), ": ", status.error_message(), "\n");
  for (const auto& violation : details.bad_request.field_violations()) {
    absl::StrAppend(&text, "  ", violation.field(), ": ", violation.description(), "\n");
  }
  if (!details.error_info.reason().empty())
    absl::StrAppend(&text, "  reason: ", details.error_info.reason(), "\n");
  if (details.retry_info.has_retry_delay()) {
    const auto& delay = details.retry_info.retry_delay();
    absl::StrAppendFormat(
        &text, "  worth a retry in %.1f s\n", delay.seconds() + delay.nanos() * 1e-9);
  }
  // Without details the status is gRPC's own, not the daemon's.
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE && status.error_details().empty()) {
    absl::StrAppend(&text, "  is the daemon running, and is ", address, " its gRPC address?\n");
  }
  return PrintableText(text);
}

std::string FailureKind(const grpc::Status& status) {
  const std::string reason = ReadDetails(status).error_info.reason();
  return PrintableText(
      absl::StrCat(CodeName(status.error_code()), reason.empty() ? "" : "/", reason));
}

std::string PrintableText(absl::string_view text) {
  std::string printable;
  printable.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    const bool is_c0 = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F;
    // U+0080 to U+009F, which some terminals obey as they do escape sequences.
    const bool is_c1 = c == 0xC2 && i + 1 < text.size() &&
                       (static_cast<unsigned char>(text[i + 1]) & 0xE0) == 0x80;
    if (is_c0 || is_c1) {
      printable += "\xEF\xBF\xBD";
      i += is_c1;
    } else {
      printable += text[i];
    }
  }
  return printable;
}

}  // namespace pagoda::daemon
