#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/server/listen_address.h"
#include "daemon/server/tls_files.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server.h"

namespace pagoda::daemon {

// The gRPC server with its health and reflection services. Thread-safe.
class GrpcServer {
 public:
  struct Options {
    ListenAddress address;
    TlsFiles tls;
    int max_message_bytes = 0;
    // Of unread request messages, over all connections.
    size_t max_inbound_bytes = 0;
  };

  // Listens, with health NOT_SERVING. `services` outlive the server. UNAVAILABLE or ALREADY_EXISTS,
  // in one line with what to do, when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      Options options, const std::vector<grpc::Service*>& services);
  ~GrpcServer();

  // What grpc.health.v1 answers: for "" whether the daemon lives, so that nobody restarts one that
  // replaces its workers; for each service whether it is ready.
  void SetHealth(bool lives, bool is_ready);
  // With the port that was bound.
  const ListenAddress& address() const { return options_.address; }
  // Refuses new calls, waits for running ones until the deadline, then cancels them. Idempotent.
  void Shutdown(absl::Time deadline);

 private:
  GrpcServer(Options options, std::unique_ptr<grpc::Server> server)
      : options_(std::move(options)), server_(std::move(server)) {}

  const Options options_;
  const std::unique_ptr<grpc::Server> server_;
};

}  // namespace pagoda::daemon
