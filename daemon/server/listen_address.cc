#include "daemon/server/listen_address.h"

#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace pagoda::daemon {
namespace {

constexpr absl::string_view kUnixPrefix = "unix:";

absl::Status AddressError(absl::string_view flag, absl::string_view text, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(flag, "=", text, ": ", what));
}

sockaddr_un UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

// Whether a process accepts connections on the socket file.
bool SomebodyListens(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return true;
  const sockaddr_un address = UnixAddress(path);
  const bool connected =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  const int error = errno;
  close(fd);
  // Only a refusal proves that the file is a leftover.
  return connected || error != ECONNREFUSED;
}

// The error of binding `address` now; 0 when it works.
int TryBind(const sockaddr* address, socklen_t size) {
  const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  int error = 0;
  if (bind(fd, address, size) != 0 || listen(fd, 1) != 0) error = errno;
  close(fd);
  return error;
}

std::string Advice(int error, const ListenAddress& address) {
  switch (error) {
    case EADDRINUSE:
      return absl::StrCat("in use by another process; stop that one or choose another ",
                          address.flag);
    case EACCES:
      return absl::StrCat("not permitted; choose a port above 1023 or a path you may write with ",
                          address.flag);
    case EADDRNOTAVAIL:
      return absl::StrCat("no interface of this machine has that address; choose another ",
                          address.flag);
    case ENOENT:
      return absl::StrCat("the folder does not exist; make it or choose another ", address.flag);
    default:
      return absl::StrCat(std::strerror(error), "; choose another ", address.flag);
  }
}

}  // namespace

bool ListenAddress::IsLoopback() const {
  return is_unix() || host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

std::string ListenAddress::ToString() const {
  if (is_unix()) return absl::StrCat(kUnixPrefix, path);
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port)
                                      : absl::StrCat(host, ":", port);
}

bool IsNoAddress(absl::string_view text) { return text.empty() || text == "none"; }

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view flag, absl::string_view text) {
  ListenAddress address;
  address.flag = std::string(flag);
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, kUnixPrefix)) {
    const size_t most_bytes = sizeof(sockaddr_un::sun_path) - 1;
    if (rest.empty()) return AddressError(flag, text, "expected a path after unix:");
    if (rest.size() > most_bytes) {
      return AddressError(
          flag, text, absl::StrCat("the path of a Unix socket has at most ", most_bytes, " bytes"));
    }
    address.path = std::string(rest);
    return address;
  }
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port) ||
      port > UINT16_MAX) {
    return AddressError(flag, text, "expected HOST:PORT with a port up to 65535, or unix:PATH");
  }
  absl::string_view host = text.substr(0, colon);
  const bool in_brackets = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  if (host.empty() || (!in_brackets && absl::StrContains(host, ':'))) {
    return AddressError(flag, text, "expected HOST:PORT, such as 127.0.0.1:8001 or [::1]:8001");
  }
  address.host = std::string(host);
  address.port = static_cast<uint16_t>(port);
  return address;
}

absl::Status PrepareAddress(const ListenAddress& address) {
  struct stat info {};
  if (!address.is_unix() || lstat(address.path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISSOCK(info.st_mode)) {
    return absl::AlreadyExistsError(
        absl::StrCat(address.flag,
                     "=",
                     address.ToString(),
                     ": exists and is no socket; remove it or choose another path"));
  }
  if (SomebodyListens(address.path)) {
    return absl::AlreadyExistsError(
        absl::StrCat("cannot listen on ", address.ToString(), ": ", Advice(EADDRINUSE, address)));
  }
  unlink(address.path.c_str());
  return absl::OkStatus();
}

absl::Status ExplainBindFailure(const ListenAddress& address) {
  int error = 0;
  if (address.is_unix()) {
    const sockaddr_un unix_address = UnixAddress(address.path);
    error = TryBind(reinterpret_cast<const sockaddr*>(&unix_address), sizeof(unix_address));
    if (error == 0) unlink(address.path.c_str());
  } else {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int lookup =
        getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
    if (lookup != 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ",
                                                 address.ToString(),
                                                 ": ",
                                                 gai_strerror(lookup),
                                                 "; choose another ",
                                                 address.flag));
    }
    const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
    for (const addrinfo* each = found; each != nullptr && error == 0; each = each->ai_next) {
      error = TryBind(each->ai_addr, each->ai_addrlen);
    }
  }
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ",
                   address.ToString(),
                   ": ",
                   error == 0 ? "the address could not be bound" : Advice(error, address)));
}

}  // namespace pagoda::daemon
