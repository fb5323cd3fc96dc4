#include "daemon/server/http_connection.h"

#include <algorithm>
#include <arpa/inet.h>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/server/request_log.h"

namespace pagoda::daemon {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

// How long a client may take to end its side after ours; closing before that can cost it the end of
// its answer.
constexpr absl::Duration kLingerTime = absl::Seconds(2);
constexpr absl::Duration kHandshakeTime = absl::Seconds(10);
constexpr absl::Duration kStallGrace = absl::Seconds(5);
// Answers that wait before no further request is read: clients may pipeline and not read.
constexpr size_t kMostWaitingBytes = size_t{256} << 10;
constexpr size_t kDiscardBytes = size_t{16} << 10;
// The slowest body that is waited for.
constexpr int64_t kLeastBodyBytesPerSecond = int64_t{64} << 10;

absl::string_view ToView(boost::beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

HttpConnection::HttpConnection(const HttpConnectionOptions* options,
                               asio::io_context* context,
                               IoTasks* tasks,
                               Socket socket)
    : options_(*options),
      context_(*context),
      tasks_(*tasks),
      stream_(std::move(socket), options->tls == nullptr ? nullptr : options->tls->current()) {}

HttpConnection::~HttpConnection() = default;

void HttpConnection::Start() {
  is_counted_ = true;
  peer_ = PeerName();
  options_.num_connections->fetch_add(1, std::memory_order_relaxed);
  last_write_ns_ = options_.clock->NowNs();
  Greet(&HttpConnection::StartRead);
}

void HttpConnection::Greet(void (HttpConnection::*next)()) {
  if (!stream_.is_encrypted()) return (this->*next)();
  read_deadline_ns_ = options_.clock->NowNs() + absl::ToInt64Nanoseconds(kHandshakeTime);
  stream_.AsyncHandshake([self = shared_from_this(), next](ErrorCode error) {
    if (self->is_closed_) return;
    // Not our protocol, no certificate of ours, or gone: there is nobody to talk to.
    if (error) return self->Close();
    (self.get()->*next)();
  });
}

void HttpConnection::TurnAway() {
  last_write_ns_ = options_.clock->NowNs();
  Greet(&HttpConnection::RefuseConnection);
}

void HttpConnection::StartRead() {
  if (is_reading_ || is_closed_ || closes_when_written_ || next_.has_value() ||
      next_error_.has_value() || waiting_.size() > kMostWaitingBytes) {
    return;
  }
  is_reading_ = true;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(options_.max_header_bytes));
  parser_->body_limit(options_.max_body_bytes);
  read_deadline_ns_ = options_.clock->NowNs() + absl::ToInt64Nanoseconds(options_.idle_timeout);
  http::async_read_header(
      stream_, buffer_, *parser_, [self = shared_from_this()](ErrorCode error, size_t) {
        self->HandleHeader(error);
      });
}

void HttpConnection::HandleHeader(ErrorCode error) {
  if (is_closed_) return;
  if (error) return HandleReadError(error);
  // It came too late.
  if (closes_when_written_) return Discard();
  // Without a key nothing is read that takes memory.
  if (!is_busy_) {
    const absl::Status admitted = options_.routes->Admit(TakeHead()).status();
    if (!admitted.ok()) {
      current_ = TakeHead();
      is_busy_ = true;
      KeepThread();
      return options_.routes->Refuse(current_, admitted, /*closes=*/true, shared_from_this());
    }
  }
  if (!is_busy_ && ToView(parser_->get()[http::field::expect]) == "100-continue")
    Send({"HTTP/1.1 100 Continue\r\n\r\n"});
  body_start_ns_ = options_.clock->NowNs();
  parser_->eager(true);
  ReadBody();
}

void HttpConnection::ReadBody() {
  if (parser_->is_done()) return HandleBody();
  const auto seconds = static_cast<int64_t>(body_bytes_) / kLeastBodyBytesPerSecond;
  read_deadline_ns_ =
      body_start_ns_ + absl::ToInt64Nanoseconds(options_.idle_timeout + absl::Seconds(seconds));
  http::async_read_some(
      stream_, buffer_, *parser_, [self = shared_from_this()](ErrorCode error, size_t) {
        if (self->is_closed_) return;
        if (error) return self->HandleReadError(error);
        if (self->closes_when_written_) return self->Discard();
        if (self->TakeBodyBytes()) self->ReadBody();
      });
}

bool HttpConnection::TakeBodyBytes() {
  const size_t bytes = parser_->get().body().size();
  if (options_.body_budget->Take(bytes - body_bytes_)) {
    body_bytes_ = bytes;
    return true;
  }
  is_reading_ = false;
  parser_->get().body().clear();
  if (is_busy_) {
    next_error_ = openai::TooManyBodiesError();
  } else {
    current_ = TakeHead();
    Refuse(openai::TooManyBodiesError());
  }
  return false;
}

void HttpConnection::GiveBodyBytes() { options_.body_budget->Give(std::exchange(body_bytes_, 0)); }

void HttpConnection::HandleReadError(ErrorCode error) {
  is_reading_ = false;
  if (is_lingering_) return Close();
  absl::optional<openai::HttpError> told;
  if (error == http::error::header_limit) {
    told = openai::HeadersTooLargeError(options_.max_header_bytes);
  } else if (error == http::error::body_limit) {
    told = openai::RequestTooLargeError(options_.max_body_bytes);
  } else if (error.category() == http::make_error_code(http::error::bad_method).category() &&
             error != http::error::end_of_stream && error != http::error::partial_message) {
    told = openai::MalformedRequestError(error.message());
  }
  if (!told.has_value()) return HandleClientGone();
  if (is_busy_) {
    next_error_ = std::move(told);
  } else {
    current_ = HttpRequest();
    Refuse(*told);
  }
}

HttpRequest HttpConnection::TakeHead() const {
  const auto& message = parser_->get();
  const auto field = [&message](http::field name) { return std::string(ToView(message[name])); };
  HttpRequest head;
  head.method = std::string(ToView(message.method_string()));
  const absl::string_view target = ToView(message.target());
  head.path = std::string(target.substr(0, target.find('?')));
  head.authorization = field(http::field::authorization);
  head.content_type = field(http::field::content_type);
  head.content_encoding = field(http::field::content_encoding);
  head.origin = field(http::field::origin);
  head.requested_headers = field(http::field::access_control_request_headers);
  head.request_id = std::string(ToView(message["X-Request-Id"]));
  head.traceparent = ValidTraceparent(ToView(message["traceparent"])).value_or("");
  head.peer = peer_;
  head.keep_alive = message.keep_alive();
  head.http_1_0 = message.version() < 11;
  return head;
}

void HttpConnection::HandleBody() {
  is_reading_ = false;
  HttpRequest request = TakeHead();
  request.body = std::move(parser_->get().body());
  if (is_busy_) {
    next_ = std::move(request);
  } else {
    Dispatch(std::move(request));
  }
}

// The I/O thread goes on while somebody works on this.
void HttpConnection::KeepThread() {
  work_.emplace(context_.get_executor());
  work_->on_work_started();
}

void HttpConnection::Dispatch(HttpRequest request) {
  is_busy_ = true;
  // From here on the text pool counts them.
  GiveBodyBytes();
  std::string body = std::move(request.body);
  current_ = request;
  request.body = std::move(body);
  KeepThread();
  const std::shared_ptr<HttpConnection> self = shared_from_this();
  std::shared_ptr<HttpExchange> exchange = options_.routes->Handle(std::move(request), self);
  if (is_busy_) exchange_ = std::move(exchange);
  // Reads ahead, which also tells when the client is gone.
  StartRead();
}

HttpHeaders HttpConnection::CommonHeaders() const {
  HttpHeaders headers;
  if (!current_.request_id.empty()) headers.emplace_back("X-Request-Id", current_.request_id);
  if (!current_.traceparent.empty()) headers.emplace_back("traceparent", current_.traceparent);
  const auto& origins = options_.allowed_origins;
  const bool any = std::find(origins.begin(), origins.end(), "*") != origins.end();
  if (origins.empty() || current_.origin.empty()) return headers;
  if (!any) headers.emplace_back("Vary", "Origin");
  if (!any && std::find(origins.begin(), origins.end(), current_.origin) == origins.end())
    return headers;
  headers.emplace_back("Access-Control-Allow-Origin", any ? "*" : current_.origin);
  headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  if (current_.method != "OPTIONS") return headers;
  headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  headers.emplace_back("Access-Control-Allow-Headers",
                       current_.requested_headers.empty() ? "Authorization, Content-Type"
                                                          : current_.requested_headers);
  headers.emplace_back("Access-Control-Max-Age", "600");
  return headers;
}

void HttpConnection::Refuse(const openai::HttpError& error) {
  is_busy_ = true;
  HttpReply reply = ErrorReply(error);
  reply.closes = true;
  Reply(std::move(reply));
}

void HttpConnection::Reply(HttpReply reply) {
  if (!is_busy_) return;
  const bool keeps = current_.keep_alive && !reply.closes && !is_draining_;
  HttpHeaders headers = CommonHeaders();
  headers.insert(headers.end(), reply.headers.begin(), reply.headers.end());
  const size_t body_bytes = reply.body.size();
  const std::string head = FormatHead({.status = reply.status,
                                       .content_type = reply.content_type,
                                       .body_bytes = &body_bytes,
                                       .http_1_0 = current_.http_1_0,
                                       .keep_alive = keeps,
                                       .headers = &headers});
  if (current_.method == "HEAD") reply.body.clear();
  Send({head, reply.body});
  FinishExchange(!keeps);
}

void HttpConnection::BeginStream() {
  HttpHeaders headers = CommonHeaders();
  headers.emplace_back("Cache-Control", "no-cache");
  // Proxies would hold events back.
  headers.emplace_back("X-Accel-Buffering", "no");
  Send({FormatHead({.content_type = "text/event-stream; charset=utf-8",
                    .http_1_0 = current_.http_1_0,
                    .keep_alive = current_.keep_alive && !current_.http_1_0,
                    .headers = &headers})});
}

bool HttpConnection::Write(absl::string_view bytes) {
  if (current_.http_1_0) {
    Send({bytes});
  } else {
    Send({ChunkHead(bytes.size()), bytes, kEndOfChunk});
  }
  return !is_writing_;
}

void HttpConnection::EndStream(std::string bytes, bool closes) {
  if (current_.http_1_0) {
    Send({bytes});
  } else {
    Send({ChunkHead(bytes.size()), bytes, kEndOfLastChunk});
  }
  FinishExchange(closes || current_.http_1_0 || !current_.keep_alive || is_draining_);
}

void HttpConnection::Abort() {
  client_gone_ = true;
  FinishExchange(/*closes=*/true);
  Close();
}

void HttpConnection::FinishExchange(bool closes) {
  is_busy_ = false;
  exchange_.reset();
  if (work_.has_value()) {
    work_->on_work_finished();
    work_.reset();
  }
  if (closes) return CloseWhenWritten();
  if (next_error_.has_value()) {
    current_ = HttpRequest();
    return Refuse(*std::exchange(next_error_, absl::nullopt));
  }
  if (next_.has_value()) return Dispatch(*std::exchange(next_, absl::nullopt));
  read_deadline_ns_ = options_.clock->NowNs() + absl::ToInt64Nanoseconds(options_.idle_timeout);
  StartRead();
}

void HttpConnection::Send(std::array<absl::string_view, 3> pieces) {
  if (is_closed_ || client_gone_) return;
  size_t taken = 0;
  if (!is_writing_) {
    last_write_ns_ = options_.clock->NowNs();
    taken = stream_.WriteNow(pieces);
  }
  for (absl::string_view piece : pieces) {
    const size_t skipped = std::min(taken, piece.size());
    taken -= skipped;
    absl::StrAppend(&waiting_, piece.substr(skipped));
  }
  Flush();
}

void HttpConnection::Flush() {
  if (is_writing_ || waiting_.empty()) return;
  is_writing_ = true;
  last_write_ns_ = options_.clock->NowNs();
  in_flight_ = std::exchange(waiting_, "");
  asio::async_write(
      stream_, asio::buffer(in_flight_), [self = shared_from_this()](ErrorCode error, size_t) {
        self->HandleWritten(error);
      });
}

void HttpConnection::HandleWritten(ErrorCode error) {
  is_writing_ = false;
  last_write_ns_ = options_.clock->NowNs();
  in_flight_.clear();
  if (error) return HandleClientGone();
  Flush();
  if (is_writing_ || is_closed_) return;
  if (closes_when_written_) return StartLinger();
  if (exchange_ != nullptr) {
    const std::shared_ptr<HttpExchange> exchange = exchange_;
    exchange->HandleWritten();
  }
  // It may have waited for this.
  StartRead();
}

void HttpConnection::HandleClientGone() {
  if (!std::exchange(client_gone_, true) && exchange_ != nullptr) exchange_->HandleClientGone();
  Close();
}

void HttpConnection::CloseWhenWritten() {
  closes_when_written_ = true;
  if (!is_writing_ && waiting_.empty()) StartLinger();
}

void HttpConnection::StartLinger() {
  if (is_closed_ || std::exchange(is_lingering_, true)) return;
  read_deadline_ns_ = options_.clock->NowNs() + absl::ToInt64Nanoseconds(kLingerTime);
  buffer_.clear();
  if (stream_.is_encrypted())
    return stream_.AsyncShutdown([self = shared_from_this()](ErrorCode) { self->Close(); });
  ErrorCode ignored;
  stream_.socket().shutdown(Socket::shutdown_send, ignored);
  // What was being read ahead goes on until it fails, or has ended.
  if (!is_reading_) Discard();
}

// Until the client ends its side or the time is over.
void HttpConnection::Discard() {
  if (is_closed_) return;
  stream_.async_read_some(buffer_.prepare(kDiscardBytes),
                          [self = shared_from_this()](ErrorCode error, size_t) {
                            if (error) return self->Close();
                            self->Discard();
                          });
}

std::string HttpConnection::PeerName() {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (getpeername(stream_.socket().native_handle(), any, &length) != 0) return "";
  char host[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(any)->sin_addr, host, sizeof(host));
    return absl::StrCat("ipv4:", host, ":0");
  }
  if (address.ss_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(any)->sin6_addr, host, sizeof(host));
    return absl::StrCat("ipv6:[", host, "]:0");
  }
  return "unix:";
}

// While a request waits that was read ahead, nothing is being read that would tell.
bool HttpConnection::PeerHasClosed() {
  pollfd state = {.fd = stream_.socket().native_handle(), .events = POLLRDHUP, .revents = 0};
  return poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void HttpConnection::Close() {
  if (std::exchange(is_closed_, true)) return;
  if (is_counted_) options_.num_connections->fetch_sub(1, std::memory_order_relaxed);
  GiveBodyBytes();
  ErrorCode ignored;
  stream_.socket().close(ignored);
  waiting_.clear();
}

void HttpConnection::Tick() {
  if (is_closed_) return;
  const int64_t now_ns = options_.clock->NowNs();
  const auto passed = [&](absl::Duration limit) {
    return now_ns - last_write_ns_ >= absl::ToInt64Nanoseconds(limit);
  };
  if (is_writing_) {
    // After the stream's own limit: its request is to end as one that stood still.
    if (passed(options_.stall_timeout + std::min(options_.stall_timeout, kStallGrace))) {
      HandleClientGone();
    }
  } else if (is_busy_ && !is_reading_ && PeerHasClosed()) {
    HandleClientGone();
  } else if (is_busy_) {
    if (exchange_ != nullptr && passed(options_.heartbeat_interval)) {
      const std::shared_ptr<HttpExchange> exchange = exchange_;
      exchange->HandleQuiet();
    }
  } else if (now_ns >= read_deadline_ns_) {
    HandleSilence();
  }
}

void HttpConnection::HandleSilence() {
  const bool has_begun = is_reading_ && !is_lingering_ && parser_->got_some();
  if (!has_begun) return Close();
  // What is being read goes on, and is dropped.
  current_ = HttpRequest();
  Refuse(openai::SlowRequestError());
}

void HttpConnection::Drain() {
  is_draining_ = true;
  if (!is_busy_) CloseWhenWritten();
}

}  // namespace pagoda::daemon
