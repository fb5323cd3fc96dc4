#include "daemon/server/http_message.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace pagoda::daemon {
namespace {

absl::string_view ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 409:
      return "Conflict";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Internal Server Error";
  }
}

// Statuses that OpenAI's clients try again unless told otherwise.
bool LooksRetryable(int status) {
  return status == 408 || status == 409 || status == 429 || status >= 500;
}

}  // namespace

HttpReply ErrorReply(const openai::HttpError& error) {
  HttpReply reply = {.status = error.status, .body = error.ToJson()};
  if (error.retry_after.has_value()) {
    const int64_t ms = absl::ToInt64Milliseconds(*error.retry_after);
    reply.headers.emplace_back("Retry-After",
                               absl::StrCat(std::max<int64_t>((ms + 999) / 1000, 1)));
    reply.headers.emplace_back("retry-after-ms", absl::StrCat(ms));
  }
  if (LooksRetryable(error.status) && !error.worth_retrying)
    reply.headers.emplace_back("x-should-retry", "false");
  if (error.status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

std::string FormatHead(const HttpHead& head) {
  std::string out = absl::StrCat("HTTP/1.1 ", head.status, " ", ReasonPhrase(head.status), "\r\n");
  if (!head.content_type.empty())
    absl::StrAppend(&out, "Content-Type: ", head.content_type, "\r\n");
  if (head.body_bytes != nullptr) {
    // A 204 has no body by its nature.
    if (head.status != 204) absl::StrAppend(&out, "Content-Length: ", *head.body_bytes, "\r\n");
  } else if (!head.http_1_0) {
    absl::StrAppend(&out, "Transfer-Encoding: chunked\r\n");
  }
  if (!head.keep_alive) {
    absl::StrAppend(&out, "Connection: close\r\n");
  } else if (head.http_1_0) {
    absl::StrAppend(&out, "Connection: keep-alive\r\n");
  }
  if (head.headers != nullptr) {
    for (const auto& [name, value] : *head.headers)
      absl::StrAppend(&out, name, ": ", value, "\r\n");
  }
  out.append("\r\n");
  return out;
}

std::string ChunkHead(size_t chunk_bytes) { return absl::StrCat(absl::Hex(chunk_bytes), "\r\n"); }

}  // namespace pagoda::daemon
