#include "daemon/openai/error_body.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "daemon/openai/json_text.h"
#include "daemon/server/rpc_error.h"

namespace pagoda::daemon::openai {
namespace {

constexpr char kInvalid[] = "invalid_request_error";

struct Kind {
  int status;
  const char* type;
};

Kind KindOfCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return {400, kInvalid};
    case absl::StatusCode::kUnauthenticated:
      return {401, "authentication_error"};
    case absl::StatusCode::kPermissionDenied:
      return {403, "permission_error"};
    case absl::StatusCode::kNotFound:
      return {404, kInvalid};
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return {409, "conflict_error"};
    case absl::StatusCode::kResourceExhausted:
      return {429, "rate_limit_error"};
    case absl::StatusCode::kCancelled:
      return {499, "cancelled_error"};
    case absl::StatusCode::kUnimplemented:
      return {501, "not_implemented_error"};
    case absl::StatusCode::kUnavailable:
      return {503, "service_unavailable_error"};
    case absl::StatusCode::kDeadlineExceeded:
      return {504, "timeout_error"};
    default:
      return {500, "server_error"};
  }
}

// Descriptions may name other fields; here these have no groups.
std::string Describe(absl::string_view description) {
  return absl::StrReplaceAll(description,
                             {{"sampling.beam_search.width", "best_of"},
                              {"sampling.beam_search", "use_beam_search"},
                              {"sampling.thinking_budget", "thinking_token_budget"},
                              {"sampling.", ""},
                              {"stopping.", ""},
                              {"output.", ""},
                              {"prompt.chat.", ""},
                              {"StreamGenerate", "\"stream\": true"}});
}

// Clients have several fields for each of these.
bool IsForm(absl::string_view field) {
  for (const char* name : {"json_schema", "json_object", "regex", "grammar", "choice"}) {
    if (absl::StartsWith(field, absl::StrCat("sampling.", name))) return true;
  }
  return false;
}

void AppendNullable(absl::string_view text, std::string* json) {
  if (text.empty()) {
    json->append("null");
  } else {
    AppendString(text, json);
  }
}

HttpError InvalidRequest(int status, absl::string_view message, absl::string_view code = "") {
  return {.status = status,
          .type = kInvalid,
          .code = std::string(code),
          .message = std::string(message)};
}

}  // namespace

std::string HttpError::ToJson() const {
  std::string json = "{\"error\":{\"message\":";
  AppendString(message, &json);
  json.append(",\"type\":");
  AppendString(type, &json);
  json.append(",\"param\":");
  AppendNullable(param, &json);
  json.append(",\"code\":");
  AppendNullable(code, &json);
  json.append("}}");
  return json;
}

std::string FieldNameOf(absl::string_view path) {
  if (path == "sampling.thinking_budget") return "thinking_token_budget";
  if (path == "sampling.beam_search") return "use_beam_search";
  if (path == "sampling.beam_search.width") return "best_of";
  if (absl::ConsumePrefix(&path, "sampling.beam_search.")) return std::string(path);
  for (const char* group : {"sampling.", "stopping.", "output."}) {
    if (absl::ConsumePrefix(&path, group)) return std::string(path);
  }
  if (absl::ConsumePrefix(&path, "prompt.token_ids.ids")) return absl::StrCat("prompt", path);
  if (path == "prompt.text" || path == "prompt.token_ids") return "prompt";
  if (path == "prompt.chat") return "messages";
  if (path == "prompt.chat.tools_json") return "tools";
  if (path == "prompt.chat.template_arguments_json") return "chat_template_kwargs";
  for (const char* group : {"prompt.chat.", "prompt."}) {
    if (absl::ConsumePrefix(&path, group)) break;
  }
  return std::string(absl::StripSuffix(path, "_json"));
}

HttpError ToHttpError(const absl::Status& status, absl::string_view form_field) {
  const Kind kind = KindOfCode(status.code());
  HttpError error = {.status = kind.status, .type = kind.type};
  const std::vector<FieldViolation> violations = FieldViolations(status);
  if (violations.empty()) {
    error.message = Describe(status.message());
  } else {
    const std::string& field = violations.front().field;
    error.param =
        !form_field.empty() && IsForm(field) ? std::string(form_field) : FieldNameOf(field);
    error.message = absl::StrCat(error.param, ": ", Describe(violations.front().description));
    if (violations.size() > 1)
      absl::StrAppend(&error.message, " (and ", violations.size() - 1, " more)");
  }
  const std::string reason = ErrorReason(status);
  if (reason == "PROMPT_TOO_LONG") {
    error.code = "context_length_exceeded";
  } else if (reason == "MODEL_NOT_FOUND") {
    error.code = "model_not_found";
    error.param = "model";
  } else if (!reason.empty() && reason != "INVALID_FIELD") {
    error.code = absl::AsciiStrToLower(reason);
  }
  error.retry_after = RetryDelay(status);
  error.worth_retrying = error.retry_after.has_value();
  return error;
}

HttpError MalformedRequestError(absl::string_view what) {
  return InvalidRequest(400, absl::StrCat("the request is not well-formed HTTP: ", what));
}

HttpError RequestTooLargeError(size_t most_bytes) {
  return InvalidRequest(413,
                        absl::StrCat("the body is larger than the limit of ", most_bytes, " bytes"),
                        "request_too_large");
}

HttpError HeadersTooLargeError(size_t most_bytes) {
  return InvalidRequest(
      431,
      absl::StrCat("the headers are larger than the limit of ", most_bytes, " bytes"),
      "headers_too_large");
}

HttpError SlowRequestError() {
  return {.status = 408,
          .type = "timeout_error",
          .code = "request_timeout",
          .message = "the request did not come in time",
          .worth_retrying = true};
}

HttpError UnknownRouteError(absl::string_view method, absl::string_view path) {
  return InvalidRequest(
      404, absl::StrCat("there is no ", method, " ", QuotedExtract(path)), "unknown_url");
}

HttpError WrongMethodError(absl::string_view method, absl::string_view allowed) {
  return InvalidRequest(405,
                        absl::StrCat("expected ", allowed, ", found ", QuotedExtract(method)),
                        "method_not_allowed");
}

HttpError WrongContentTypeError() {
  return InvalidRequest(415,
                        "expected Content-Type: application/json without Content-Encoding",
                        "unsupported_media_type");
}

HttpError NotImplementedError(absl::string_view what) {
  return {.status = 501, .type = "not_implemented_error", .message = std::string(what)};
}

HttpError TooManyConnectionsError() {
  return {.status = 503,
          .type = "service_unavailable_error",
          .code = "too_many_connections",
          .message = "too many connections are open",
          .retry_after = absl::Seconds(1),
          .worth_retrying = true};
}

HttpError TooManyBodiesError() {
  return {.status = 429,
          .type = "rate_limit_error",
          .code = "too_many_request_bytes",
          .message = "too many bytes of requests are being received",
          .retry_after = absl::Seconds(1),
          .worth_retrying = true};
}

}  // namespace pagoda::daemon::openai
