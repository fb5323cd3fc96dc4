#include "daemon/server/http_connection.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace pagoda::daemon {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

// How long a client may take to end its side after ours; closing before that can cost it the end of
// its answer.
constexpr absl::Duration kLingerTime = absl::Seconds(2);
// Answers that wait before no further request is read: clients may pipeline and not read.
constexpr size_t kMostWaitingBytes = 256 * 1024;

absl::string_view ToView(boost::beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

HttpConnection::HttpConnection(const HttpConnectionOptions* options,
                               asio::io_context* context,
                               Socket socket)
    : options_(*options), context_(*context), socket_(std::move(socket)) {}

HttpConnection::~HttpConnection() = default;

void HttpConnection::Start() {
  last_write_ns_ = options_.clock->NowNs();
  StartRead();
}

void HttpConnection::Post(absl::AnyInvocable<void()> task) {
  asio::post(context_, std::move(task));
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
      socket_, buffer_, *parser_, [self = shared_from_this()](ErrorCode error, size_t) {
        self->HandleHeader(error);
      });
}

void HttpConnection::HandleHeader(ErrorCode error) {
  if (is_closed_) return;
  if (error) return HandleReadError(error);
  // Without a key nothing is read that takes memory.
  if (!is_busy_ && !options_.routes->Admits(TakeHead())) {
    current_ = TakeHead();
    return Refuse(openai::MissingKeyError());
  }
  if (!is_busy_ && ToView(parser_->get()[http::field::expect]) == "100-continue")
    Send("HTTP/1.1 100 Continue\r\n\r\n");
  read_deadline_ns_ = options_.clock->NowNs() + absl::ToInt64Nanoseconds(options_.idle_timeout);
  http::async_read(
      socket_, buffer_, *parser_, [self = shared_from_this()](ErrorCode read_error, size_t) {
        self->HandleBody(read_error);
      });
}

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
  head.keep_alive = message.keep_alive();
  head.http_1_0 = message.version() < 11;
  return head;
}

void HttpConnection::HandleBody(ErrorCode error) {
  if (is_closed_) return;
  if (error) return HandleReadError(error);
  is_reading_ = false;
  HttpRequest request = TakeHead();
  request.body = std::move(parser_->get().body());
  if (is_busy_) {
    next_ = std::move(request);
  } else {
    Dispatch(std::move(request));
  }
}

void HttpConnection::Dispatch(HttpRequest request) {
  is_busy_ = true;
  std::string body = std::move(request.body);
  current_ = request;
  request.body = std::move(body);
  // The I/O thread goes on while somebody works on this.
  work_.emplace(context_.get_executor());
  work_->on_work_started();
  const std::shared_ptr<HttpConnection> self = shared_from_this();
  std::shared_ptr<HttpExchange> exchange = options_.routes->Handle(std::move(request), self);
  if (is_busy_) exchange_ = std::move(exchange);
  // Reads ahead, which also tells when the client is gone.
  StartRead();
}

HttpHeaders HttpConnection::CommonHeaders() const {
  HttpHeaders headers;
  if (!current_.request_id.empty()) headers.emplace_back("X-Request-Id", current_.request_id);
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
  std::string bytes = FormatHead({.status = reply.status,
                                  .content_type = reply.content_type,
                                  .body_bytes = &body_bytes,
                                  .http_1_0 = current_.http_1_0,
                                  .keep_alive = keeps,
                                  .headers = &headers});
  if (current_.method != "HEAD") bytes += reply.body;
  Send(std::move(bytes));
  FinishExchange(!keeps);
}

void HttpConnection::BeginStream() {
  HttpHeaders headers = CommonHeaders();
  headers.emplace_back("Cache-Control", "no-cache");
  // Proxies would hold events back.
  headers.emplace_back("X-Accel-Buffering", "no");
  Send(FormatHead({.content_type = "text/event-stream; charset=utf-8",
                   .http_1_0 = current_.http_1_0,
                   .keep_alive = current_.keep_alive && !current_.http_1_0,
                   .headers = &headers}));
}

void HttpConnection::Write(std::string bytes, absl::AnyInvocable<void()> on_written) {
  if (client_gone_) return on_written();
  waiting_callbacks_.push_back(std::move(on_written));
  if (current_.http_1_0) return Send(std::move(bytes));
  std::string chunk;
  chunk.reserve(bytes.size() + 16);
  AppendChunk(bytes, &chunk);
  Send(std::move(chunk));
}

void HttpConnection::EndStream(std::string bytes, bool closes) {
  std::string last;
  if (current_.http_1_0) {
    last = std::move(bytes);
  } else {
    AppendChunk(bytes, &last);
    last.append(kLastChunk);
  }
  Send(std::move(last));
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

void HttpConnection::Send(std::string bytes) {
  if (is_closed_ || client_gone_) return;
  if (waiting_.empty()) {
    waiting_ = std::move(bytes);
  } else {
    waiting_ += bytes;
  }
  Flush();
}

void HttpConnection::Flush() {
  if (is_writing_ || waiting_.empty()) return;
  is_writing_ = true;
  last_write_ns_ = options_.clock->NowNs();
  in_flight_ = std::exchange(waiting_, "");
  in_flight_callbacks_.swap(waiting_callbacks_);
  asio::async_write(
      socket_, asio::buffer(in_flight_), [self = shared_from_this()](ErrorCode error, size_t) {
        self->HandleWritten(error);
      });
}

void HttpConnection::HandleWritten(ErrorCode error) {
  is_writing_ = false;
  last_write_ns_ = options_.clock->NowNs();
  in_flight_.clear();
  std::vector<absl::AnyInvocable<void()>> callbacks;
  callbacks.swap(in_flight_callbacks_);
  for (auto& callback : callbacks) callback();
  if (error) return HandleClientGone();
  Flush();
  if (is_writing_ || is_closed_) return;
  if (closes_when_written_) return StartLinger();
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
  ErrorCode ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  read_deadline_ns_ = options_.clock->NowNs() + absl::ToInt64Nanoseconds(kLingerTime);
  buffer_.clear();
  // What was being read ahead goes on until it fails, or ends and is dropped here.
  const auto discard = [self = shared_from_this()](ErrorCode /*error*/, size_t /*bytes*/) {
    self->Close();
  };
  if (!is_reading_) socket_.async_read_some(buffer_.prepare(4096), discard);
}

void HttpConnection::Close() {
  if (std::exchange(is_closed_, true)) return;
  ErrorCode ignored;
  socket_.close(ignored);
  std::vector<absl::AnyInvocable<void()>> callbacks;
  callbacks.swap(waiting_callbacks_);
  for (auto& callback : callbacks) callback();
  waiting_.clear();
}

void HttpConnection::Tick() {
  if (is_closed_) return;
  const int64_t now_ns = options_.clock->NowNs();
  const auto passed = [&](absl::Duration limit) {
    return now_ns - last_write_ns_ >= absl::ToInt64Nanoseconds(limit);
  };
  if (is_writing_) {
    if (passed(options_.stall_timeout)) HandleClientGone();
  } else if (is_busy_) {
    if (exchange_ != nullptr && passed(options_.heartbeat_interval)) {
      const std::shared_ptr<HttpExchange> exchange = exchange_;
      exchange->HandleQuiet();
    }
  } else if (now_ns >= read_deadline_ns_) {
    Close();
  }
}

void HttpConnection::Drain() {
  is_draining_ = true;
  if (!is_busy_) CloseWhenWritten();
}

}  // namespace pagoda::daemon
