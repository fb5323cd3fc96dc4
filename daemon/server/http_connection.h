#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "daemon/server/byte_budget.h"
#include "daemon/server/http_message.h"
#include "daemon/server/http_routes.h"
#include "daemon/server/http_stream.h"
#include "daemon/server/io_tasks.h"
#include "daemon/server/tls_files.h"
#include "kernels/base/clock.h"

namespace pagoda::daemon {

// What all connections have in common. Constant.
struct HttpConnectionOptions {
  const HttpRoutes* routes = nullptr;
  const Clock* clock = &Clock::Monotonic();
  TlsContext* tls = nullptr;  // null: connections are not encrypted
  // Exact origins, or "*".
  std::vector<std::string> allowed_origins;
  size_t max_body_bytes = size_t{64} << 20;
  size_t max_header_bytes = size_t{32} << 10;
  // Of the bodies of all connections that are being read.
  ByteBudget* body_budget = nullptr;
  // Open connections, but for those that are turned away.
  std::atomic<int64_t>* num_connections = nullptr;
  // For the next request of a client that has none running; a body may take longer as it is larger.
  absl::Duration idle_timeout = absl::Seconds(75);
  // A client that takes nothing for so long is cut off.
  absl::Duration stall_timeout = absl::Seconds(60);
  // A stream says something at least so often.
  absl::Duration heartbeat_interval = absl::Seconds(15);
};

// One client's connection: reads requests one after the other, reads one ahead, writes answers. A
// request that is being answered keeps the connection alive. I/O thread only, but for Post.
class HttpConnection final : public HttpPeer, public std::enable_shared_from_this<HttpConnection> {
 public:
  using Socket = HttpStream::Socket;

  HttpConnection(const HttpConnectionOptions* options,
                 boost::asio::io_context* context,
                 IoTasks* tasks,
                 Socket socket);
  ~HttpConnection() override;

  void Start();
  // Says that there are too many connections, and ends.
  void TurnAway();
  // Looks at the time; about once a second.
  void Tick();
  // Ends when the exchange under way has ended, or at once where there is none.
  void Drain();
  // Ends at once.
  void CutOff() { HandleClientGone(); }
  bool is_closed() const { return is_closed_; }

  void Post(absl::AnyInvocable<void()> task) override { tasks_.Post(std::move(task)); }
  void Reply(HttpReply reply) override;
  void BeginStream() override;
  bool Write(absl::string_view bytes) override;
  void EndStream(std::string bytes, bool closes) override;
  void Abort() override;

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using ErrorCode = boost::system::error_code;

  // Goes on at once, or when the connection is encrypted.
  void Greet(void (HttpConnection::*next)());
  void RefuseConnection() { Refuse(openai::TooManyConnectionsError()); }
  void StartRead();
  void HandleHeader(ErrorCode error);
  void ReadBody();
  // Whether the budget has room for what has come of the body.
  bool TakeBodyBytes();
  void GiveBodyBytes();
  void HandleBody();
  void HandleReadError(ErrorCode error);
  // No request has come in time: one that has begun is answered so.
  void HandleSilence();
  HttpRequest TakeHead() const;
  void Dispatch(HttpRequest request);
  void KeepThread();
  void Refuse(const openai::HttpError& error);
  void FinishExchange(bool closes);
  HttpHeaders CommonHeaders() const;
  // The pieces one after the other: to the kernel as far as it takes them, or after what waits.
  void Send(std::array<absl::string_view, 3> pieces);
  void Flush();
  void HandleWritten(ErrorCode error);
  void HandleClientGone();
  // Ends our side once all is written, then waits a little for the client's.
  void CloseWhenWritten();
  void StartLinger();
  void Discard();
  bool PeerHasClosed();
  // As gRPC names it.
  std::string PeerName();
  void Close();

  const HttpConnectionOptions& options_;
  boost::asio::io_context& context_;
  IoTasks& tasks_;
  HttpStream stream_;
  boost::beast::flat_buffer buffer_;
  absl::optional<Parser> parser_;

  std::string peer_;
  // Of the request that is being answered.
  bool is_busy_ = false;
  HttpRequest current_;  // without its body
  std::shared_ptr<HttpExchange> exchange_;
  absl::optional<boost::asio::io_context::executor_type> work_;
  // What was read ahead meanwhile.
  absl::optional<HttpRequest> next_;
  absl::optional<openai::HttpError> next_error_;
  size_t body_bytes_ = 0;  // taken from the budget, for a body that is not dispatched yet

  std::string waiting_;    // to be written
  std::string in_flight_;  // the kernel is given this

  bool is_counted_ = false;
  bool is_reading_ = false;
  bool is_writing_ = false;
  bool is_draining_ = false;
  bool is_lingering_ = false;
  bool closes_when_written_ = false;
  bool client_gone_ = false;
  bool is_closed_ = false;
  int64_t read_deadline_ns_ = 0;
  int64_t body_start_ns_ = 0;
  int64_t last_write_ns_ = 0;  // began, or, where none is under way, ended
};

}  // namespace pagoda::daemon
