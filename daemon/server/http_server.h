#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/server/http_connection.h"
#include "daemon/server/listen_address.h"

namespace pagoda::daemon {

// The HTTP listener and its I/O threads, each with its own connections. The first one accepts.
class HttpServer {
 public:
  struct Options {
    ListenAddress address;
    size_t num_threads = 1;
    // More are told to come again.
    int64_t max_connections = 1024;
    HttpConnectionOptions connection;
  };

  // UNAVAILABLE, in one line with what to do, when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options);
  ~HttpServer();

  // With the port that was bound.
  const ListenAddress& address() const { return options_.address; }

  // Idle connections end; others with what they are answering. New ones are still taken, and
  // answered that the daemon shuts down.
  void Drain();
  // No more are taken; what is being written may end before the deadline. Waits until every
  // exchange has ended. Idempotent.
  void Shutdown(absl::Time deadline);

 private:
  struct IoThread;
  struct Listener;

  explicit HttpServer(Options options);
  absl::Status Listen();
  void Accept();
  void Adopt(IoThread* thread, HttpConnection::Socket socket);
  void ScheduleTick(IoThread* thread);

  Options options_;
  std::vector<std::unique_ptr<IoThread>> threads_;
  std::unique_ptr<Listener> listener_;
  size_t next_thread_ = 0;  // first I/O thread
  bool is_shut_down_ = false;
};

}  // namespace pagoda::daemon
