#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

namespace CLI {
class App;
}

namespace pagoda::daemon {

// Where the daemon is and how long a call may take.
struct ConnectionFlags {
  std::string address = "127.0.0.1:8001";
  std::optional<double> timeout_seconds;  // absent: as long as it takes
};

// --address and --timeout.
void AddConnectionFlags(CLI::App& command, ConnectionFlags* flags);

// A channel to `host:port` or `unix:PATH`, connected at first use; `index` keeps channels to the
// same address apart, each with a connection of its own.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address, int index = 0);

void SetTimeout(const std::optional<double>& timeout_seconds, grpc::ClientContext* context);

}  // namespace pagoda::daemon
