#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "daemon/openai/error_body.h"

// HTTP without sockets: what a route sees and answers.
namespace pagoda::daemon {

struct HttpRequest {
  std::string method;
  std::string path;  // without a query
  std::string authorization;
  std::string content_type;
  std::string content_encoding;
  std::string origin;
  std::string request_id;         // X-Request-Id
  std::string traceparent;        // empty unless valid
  std::string requested_headers;  // Access-Control-Request-Headers
  std::string peer;               // as gRPC names it
  std::string body;
  bool keep_alive = true;
  bool http_1_0 = false;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;
  // The connection ends with it.
  bool closes = false;
};

// With the headers by which clients decide whether to try again.
HttpReply ErrorReply(const openai::HttpError& error);

// The head of a response. `body_bytes`: absent for a stream, whose body is chunked, or ends with
// the connection for a client of HTTP/1.0.
struct HttpHead {
  int status = 200;
  std::string content_type;
  const size_t* body_bytes = nullptr;
  bool http_1_0 = false;
  bool keep_alive = true;
  const HttpHeaders* headers = nullptr;
};
std::string FormatHead(const HttpHead& head);

// What stands before and after a chunk of a chunked body, and after the last one with the end of
// the body. REQUIRES: the chunk is not empty, which would end the body.
std::string ChunkHead(size_t chunk_bytes);
inline constexpr char kEndOfChunk[] = "\r\n";
inline constexpr char kEndOfLastChunk[] = "\r\n0\r\n\r\n";

// One side of an exchange: where its answer goes. But for Post, I/O thread.
class HttpPeer {
 public:
  virtual ~HttpPeer() = default;
  // Any thread: runs `task` on the peer's I/O thread.
  virtual void Post(absl::AnyInvocable<void()> task) = 0;
  // A whole answer; ends the exchange.
  virtual void Reply(HttpReply reply) = 0;
  // The head of a stream of events.
  virtual void BeginStream() = 0;
  // Part of a stream. False: not all that was written is with the kernel yet; HandleWritten of the
  // exchange says when it is, unless the client goes before.
  virtual bool Write(absl::string_view bytes) = 0;
  // Ends a stream and the exchange. `closes`: and the connection.
  virtual void EndStream(std::string bytes, bool closes) = 0;
  // Drops what waits and the connection; ends the exchange.
  virtual void Abort() = 0;
};

// The other side: what answers one request. I/O thread.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  // The client is gone: the answer is not wanted. The exchange still ends by one of the above.
  virtual void HandleClientGone() = 0;
  // The kernel has taken what Write left.
  virtual void HandleWritten() = 0;
  // Nothing has been sent for a while.
  virtual void HandleQuiet() = 0;
};

}  // namespace pagoda::daemon
