#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda::daemon {

// Where the daemon listens: "HOST:PORT" (port 0: any free one) or "unix:PATH".
struct ListenAddress {
  std::string flag;  // as the user knows it, such as "--grpc-address"
  std::string host;  // empty for a Unix socket; without brackets
  uint16_t port = 0;
  std::string path;  // of a Unix socket

  bool is_unix() const { return !path.empty(); }
  bool IsLoopback() const;
  // "127.0.0.1:8001", "[::1]:8001", "unix:/run/pagoda.sock".
  std::string ToString() const;
};

// Whether nobody is to listen there: empty, or "none".
bool IsNoAddress(absl::string_view text);

// INVALID_ARGUMENT naming the flag, the text and what was expected.
absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view flag, absl::string_view text);

// Makes the address ready to be bound: removes a socket file that nobody listens on any more.
// ALREADY_EXISTS when somebody does, or something else has that name; gRPC by itself would take
// either away.
absl::Status PrepareAddress(const ListenAddress& address);

// Why binding failed, in one line with what to do: asks the kernel by binding once more.
absl::Status ExplainBindFailure(const ListenAddress& address);

}  // namespace pagoda::daemon
