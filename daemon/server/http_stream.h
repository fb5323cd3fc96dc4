#pragma once

#include <array>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <memory>
#include <sys/socket.h>
#include <sys/uio.h>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace pagoda::daemon {

// A socket, encrypted or not: what Asio and Beast ask of a stream. Stays where it is made.
class HttpStream {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  using TlsContext = boost::asio::ssl::context;
  using executor_type = Socket::executor_type;

  // `tls`: null: not encrypted.
  HttpStream(Socket socket, std::shared_ptr<TlsContext> tls)
      : socket_(std::move(socket)), context_(std::move(tls)) {
    if (context_ != nullptr) tls_.emplace(socket_, *context_);
  }
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  executor_type get_executor() { return socket_.get_executor(); }
  Socket& socket() { return socket_; }
  bool is_encrypted() const { return tls_.has_value(); }

  // REQUIRES: is_encrypted.
  template <typename Handler>
  void AsyncHandshake(Handler handler) {
    tls_->async_handshake(boost::asio::ssl::stream_base::server, std::move(handler));
  }
  // Tells the client that nothing follows, and waits for it to say so. REQUIRES: is_encrypted.
  template <typename Handler>
  void AsyncShutdown(Handler handler) {
    tls_->async_shutdown(std::move(handler));
  }

  // How many bytes of the three the kernel takes without waiting. 0 also where that is not known
  // here: what is wrong with the socket, or any of it where it is encrypted, is for
  // async_write_some.
  size_t WriteNow(std::array<absl::string_view, 3> pieces) {
    if (tls_.has_value()) return 0;
    std::array<iovec, 3> parts;
    for (size_t i = 0; i < pieces.size(); ++i)
      parts[i] = {.iov_base = const_cast<char*>(pieces[i].data()), .iov_len = pieces[i].size()};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t size = sendmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    return size > 0 ? static_cast<size_t>(size) : 0;
  }

  template <typename Buffers, typename Handler>
  auto async_read_some(const Buffers& buffers, Handler&& handler) {
    if (tls_.has_value()) return tls_->async_read_some(buffers, std::forward<Handler>(handler));
    return socket_.async_read_some(buffers, std::forward<Handler>(handler));
  }
  template <typename Buffers, typename Handler>
  auto async_write_some(const Buffers& buffers, Handler&& handler) {
    if (tls_.has_value()) return tls_->async_write_some(buffers, std::forward<Handler>(handler));
    return socket_.async_write_some(buffers, std::forward<Handler>(handler));
  }

 private:
  Socket socket_;
  const std::shared_ptr<TlsContext> context_;
  absl::optional<boost::asio::ssl::stream<Socket&>> tls_;
};

}  // namespace pagoda::daemon
