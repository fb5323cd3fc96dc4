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
  std::string api_key;                    // shown by every call; empty: none is
  // PEM: whose signature the daemon's certificate must bear, and what is shown in return. Empty:
  // the connection is not encrypted; no certificate is shown.
  std::string ca_pem;
  std::string cert_pem;
  std::string key_pem;
};

// --address, --timeout, --api-key-file and those of TLS.
void AddConnectionFlags(CLI::App& command, ConnectionFlags* flags);

// A channel to the daemon, connected at first use, whose calls show the key; `index` keeps channels
// to the same address apart, each with a connection of its own.
std::shared_ptr<grpc::Channel> OpenChannel(const ConnectionFlags& flags, int index = 0);

// Gives the call its deadline and its key.
void PrepareCall(const ConnectionFlags& flags, grpc::ClientContext* context);

}  // namespace pagoda::daemon
