#include "daemon/client/http_target.h"

#include <cerrno>
#include <cstring>
#include <netdb.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/client/sse_response.h"

namespace pagoda::daemon {
namespace {

// Small questions before a load.
constexpr timeval kCallTimeout = {.tv_sec = 30, .tv_usec = 0};
constexpr size_t kMostTold = 300;  // bytes of a body, in an error

absl::Status BadUrl(absl::string_view url, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", url, "\": ", why, "; expected http://HOST[:PORT][/PATH]"));
}

absl::Status Unreachable(const HttpTarget& target, int error) {
  return absl::UnavailableError(absl::StrCat(target.host, ": ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<HttpTarget> ParseHttpTarget(absl::string_view url) {
  absl::string_view rest = url;
  if (absl::StartsWith(url, "https://"))
    return BadUrl(url, "TLS is not spoken; measure behind it, or put a proxy before it");
  if (!absl::ConsumePrefix(&rest, "http://")) return BadUrl(url, "is no http URL");
  HttpTarget target;
  const size_t slash = rest.find('/');
  target.host = std::string(rest.substr(0, slash));
  target.path = slash == absl::string_view::npos
                    ? ""
                    : std::string(absl::StripSuffix(rest.substr(slash), "/"));
  if (target.path.empty()) target.path = "/v1";

  std::string host = target.host, port = "80";
  const size_t colon = host.rfind(':');
  const size_t bracket = host.rfind(']');  // of an IPv6 address
  if (colon != std::string::npos && (bracket == std::string::npos || colon > bracket)) {
    port = host.substr(colon + 1);
    host.resize(colon);
  }
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]"))
    host = host.substr(1, host.size() - 2);
  if (host.empty()) return BadUrl(url, "names no host");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error == EAI_SERVICE || error == EAI_NONAME)
    return BadUrl(url, "there is no such host or port");
  if (error != 0)
    return absl::UnavailableError(absl::StrCat(target.host, ": ", gai_strerror(error)));
  std::memcpy(&target.address, found->ai_addr, found->ai_addrlen);
  target.address_size = found->ai_addrlen;
  freeaddrinfo(found);
  return target;
}

std::string HttpRequestText(const HttpTarget& target,
                            absl::string_view route,
                            absl::string_view body) {
  std::string text = absl::StrCat(
      body.empty() ? "GET " : "POST ", route, " HTTP/1.1\r\nHost: ", target.host, "\r\n");
  if (!target.api_key.empty())
    absl::StrAppend(&text, "Authorization: Bearer ", target.api_key, "\r\n");
  if (!body.empty()) {
    absl::StrAppend(
        &text, "Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n");
  }
  absl::StrAppend(&text, "\r\n", body);
  return text;
}

absl::StatusOr<std::string> CallHttp(const HttpTarget& target,
                                     absl::string_view route,
                                     absl::string_view body) {
  const int fd = socket(target.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Unreachable(target, errno);
  const auto close_socket = absl::MakeCleanup([fd] { close(fd); });
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kCallTimeout, sizeof(kCallTimeout));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&target.address), target.address_size) != 0)
    return Unreachable(target, errno);
  const std::string text = HttpRequestText(target, route, body);
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t size = send(fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (size <= 0) return Unreachable(target, errno);
    sent += static_cast<size_t>(size);
  }
  SseResponse response;
  std::vector<std::string> events;
  char bytes[16384];
  while (!response.is_complete()) {
    const ssize_t size = recv(fd, bytes, sizeof(bytes), 0);
    if (size < 0) return Unreachable(target, errno);
    if (size == 0) response.FinishInput();
    response.Feed({bytes, static_cast<size_t>(size)}, &events);
    if (response.is_broken())
      return absl::UnavailableError(absl::StrCat(target.host, ": the answer is no HTTP"));
  }
  if (response.status() == 200) return response.body();
  return absl::UnknownError(absl::StrCat(
      route, ": HTTP ", response.status(), ": ", response.body().substr(0, kMostTold)));
}

}  // namespace pagoda::daemon
