#include "daemon/server/request_log.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/server/rpc_error.h"
#include "kernels/base/log.h"

namespace pagoda::daemon {
namespace {

// "00-" trace id "-" parent id "-" flags
constexpr size_t kTraceIdBegin = 3, kTraceIdBytes = 32;
constexpr size_t kParentIdBegin = 36, kParentIdBytes = 16;
constexpr size_t kFlagsBegin = 53, kFlagsBytes = 2;
constexpr size_t kTraceparentBytes = 55;

bool IsLowerHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
  });
}

bool IsId(absl::string_view text) {
  return IsLowerHex(text) && text.find_first_not_of('0') != absl::string_view::npos;
}

absl::string_view NameOf(Api api) {
  switch (api) {
    case Api::kGrpc:
      return "grpc";
    case Api::kVllmGrpc:
      return "vllm_grpc";
    case Api::kHttp:
      return "http";
  }
  return "";
}

absl::string_view NameOf(engine::Outcome outcome) {
  switch (outcome) {
    case engine::Outcome::kStop:
      return "stop";
    case engine::Outcome::kLength:
      return "length";
    case engine::Outcome::kCancelled:
      return "cancelled";
    case engine::Outcome::kDeadline:
      return "deadline";
    case engine::Outcome::kRejected:
      return "rejected";
    case engine::Outcome::kError:
      return "error";
  }
  return "";
}

// What names the request. An id is the client's text, so it is quoted.
std::string Head(const LoggedRequest& request, absl::string_view what) {
  std::string line = absl::StrCat("request ", what);
  if (!request.id.empty()) absl::StrAppend(&line, " id=", QuotedExtract(request.id));
  absl::StrAppend(&line, " api=", NameOf(request.api));
  if (!request.tenant.empty()) absl::StrAppend(&line, " tenant=", request.tenant);
  if (!request.traceparent.empty())
    absl::StrAppend(&line, " trace=", request.traceparent.substr(kTraceIdBegin, kTraceIdBytes));
  return line;
}

}  // namespace

absl::optional<std::string> ValidTraceparent(absl::string_view text) {
  if (text.size() != kTraceparentBytes || text.substr(0, kTraceIdBegin) != "00-" ||
      text[kParentIdBegin - 1] != '-' || text[kFlagsBegin - 1] != '-' ||
      !IsId(text.substr(kTraceIdBegin, kTraceIdBytes)) ||
      !IsId(text.substr(kParentIdBegin, kParentIdBytes)) ||
      !IsLowerHex(text.substr(kFlagsBegin, kFlagsBytes))) {
    return absl::nullopt;
  }
  return std::string(text);
}

void RequestLog::Log(LogLimit* limit, absl::string_view line) {
  uint64_t num_left_out = 0;
  if (!limit->Take(clock_.NowNs(), &num_left_out)) return;
  if (num_left_out == 0) return LogLine(LogLevel::kInfo, line);
  LogInfo("%s (repeated %d times since the last such line)", line, num_left_out);
}

void RequestLog::NoteStarted(const LoggedRequest& request,
                             int32_t max_tokens,
                             int32_t num_sequences) {
  Log(&started_,
      absl::StrCat(Head(request, "started"),
                   " prompt_tokens=",
                   request.num_prompt_tokens,
                   " max_tokens=",
                   max_tokens,
                   " n=",
                   num_sequences));
}

void RequestLog::NoteEnded(const LoggedRequest& request,
                           engine::Outcome outcome,
                           grpc::StatusCode code,
                           int64_t elapsed_ns) {
  LogLimit* limit = &served_;
  if (outcome == engine::Outcome::kCancelled) limit = &cancelled_;
  if (outcome == engine::Outcome::kRejected) limit = &refused_;
  if (outcome == engine::Outcome::kDeadline || outcome == engine::Outcome::kError) limit = &failed_;
  Log(limit,
      absl::StrCat(Head(request, "ended"),
                   " outcome=",
                   NameOf(outcome),
                   " code=",
                   GrpcCodeName(code),
                   " prompt_tokens=",
                   request.num_prompt_tokens,
                   " cached_tokens=",
                   request.num_cached_tokens,
                   " output_tokens=",
                   request.num_output_tokens,
                   absl::StrFormat(" seconds=%.3f", static_cast<double>(elapsed_ns) * 1e-9)));
}

}  // namespace pagoda::daemon
