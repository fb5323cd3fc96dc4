#include "daemon/server/http_server.h"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <netinet/tcp.h>
#include <pthread.h>
#include <thread>
#include <unistd.h>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using asio::local::stream_protocol;
using ErrorCode = boost::system::error_code;

constexpr int kBacklog = 4096;
constexpr absl::Duration kTick = absl::Seconds(1);
// What the kernel may hold for a reader that takes nothing; what is on its way is not counted.
constexpr int kMostUnsentBytes = 64 * 1024;
using UnsentBytes = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_NOTSENT_LOWAT>;
// Out of descriptors: those that close soon make room.
constexpr std::chrono::milliseconds kAcceptRetry(50);

}  // namespace

struct HttpServer::IoThread {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard{context.get_executor()};
  asio::steady_timer tick{context};
  IoTasks tasks{&context};
  // Its own thread only.
  std::unordered_set<std::shared_ptr<HttpConnection>> connections;
  bool is_stopping = false;
  std::thread thread;
};

// One of two kinds of acceptor. First I/O thread only, once there is one.
struct HttpServer::Listener {
  explicit Listener(asio::io_context* context)
      : tcp_acceptor(*context), unix_acceptor(*context), retry(*context) {}

  tcp::acceptor tcp_acceptor;
  stream_protocol::acceptor unix_acceptor;
  asio::steady_timer retry;
};

HttpServer::HttpServer(Options options) : options_(std::move(options)) {
  for (size_t i = 0; i < std::max<size_t>(options_.num_threads, 1); ++i)
    threads_.push_back(std::make_unique<IoThread>());
  listener_ = std::make_unique<Listener>(&threads_.front()->context);
}

HttpServer::~HttpServer() { Shutdown(absl::Now()); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options) {
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(options)));
  PAGODA_RETURN_IF_ERROR(server->Listen());
  server->Accept();
  for (const auto& thread : server->threads_) {
    IoThread* each = thread.get();
    server->ScheduleTick(each);
    each->thread = std::thread([each] { each->context.run(); });
    pthread_setname_np(each->thread.native_handle(), "http");
  }
  return server;
}

absl::Status HttpServer::Listen() {
  PAGODA_RETURN_IF_ERROR(PrepareAddress(options_.address));
  ErrorCode error;
  if (options_.address.is_unix()) {
    auto& acceptor = listener_->unix_acceptor;
    acceptor.open(stream_protocol(), error);
    if (!error) acceptor.bind(stream_protocol::endpoint(options_.address.path), error);
    if (!error) acceptor.listen(kBacklog, error);
    return error ? ExplainBindFailure(options_.address) : absl::OkStatus();
  }
  tcp::resolver resolver(threads_.front()->context);
  const auto found = resolver.resolve(options_.address.host,
                                      absl::StrCat(options_.address.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service,
                                      error);
  if (error || found.empty()) return ExplainBindFailure(options_.address);
  auto& acceptor = listener_->tcp_acceptor;
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(kBacklog, error);
  if (error) return ExplainBindFailure(options_.address);
  options_.address.port = acceptor.local_endpoint(error).port();
  return absl::OkStatus();
}

void HttpServer::Accept() {
  IoThread* thread = threads_[next_thread_++ % threads_.size()].get();
  const auto take = [this, thread](ErrorCode error, auto socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) {
      // Hands over to the thread whose context the socket belongs to.
      asio::post(thread->context,
                 [this, thread, generic = HttpConnection::Socket(std::move(socket))]() mutable {
                   Adopt(thread, std::move(generic));
                 });
      return Accept();
    }
    LogWarning("HTTP: a connection was not accepted: %s", error.message());
    listener_->retry.expires_after(kAcceptRetry);
    listener_->retry.async_wait([this](ErrorCode stopped) {
      if (!stopped) Accept();
    });
  };
  if (options_.address.is_unix()) {
    listener_->unix_acceptor.async_accept(thread->context,
                                          [take](ErrorCode error, stream_protocol::socket socket) {
                                            take(error, std::move(socket));
                                          });
  } else {
    listener_->tcp_acceptor.async_accept(
        thread->context, [take](ErrorCode error, tcp::socket socket) {
          ErrorCode ignored;
          // Events are small, and each is wanted at once.
          if (!error) {
            socket.set_option(tcp::no_delay(true), ignored);
            socket.set_option(UnsentBytes(kMostUnsentBytes), ignored);
          }
          take(error, std::move(socket));
        });
  }
}

void HttpServer::Adopt(IoThread* thread, HttpConnection::Socket socket) {
  if (thread->is_stopping) return;
  auto connection = std::make_shared<HttpConnection>(
      &options_.connection, &thread->context, &thread->tasks, std::move(socket));
  thread->connections.insert(connection);
  // Threads that look at once may let a few more in.
  const auto& num_connections = *options_.connection.num_connections;
  if (num_connections.load(std::memory_order_relaxed) >= options_.max_connections) {
    connection->TurnAway();
  } else {
    connection->Start();
  }
}

void HttpServer::ScheduleTick(IoThread* thread) {
  const absl::Duration period = std::min(kTick, options_.connection.heartbeat_interval / 4);
  thread->tick.expires_after(absl::ToChronoMilliseconds(period));
  thread->tick.async_wait([this, thread](ErrorCode stopped) {
    if (stopped || thread->is_stopping) return;
    TlsContext* const tls = options_.connection.tls;
    if (tls != nullptr && thread == threads_.front().get()) tls->ReloadIfChanged();
    for (auto it = thread->connections.begin(); it != thread->connections.end();) {
      (*it)->Tick();
      it = (*it)->is_closed() ? thread->connections.erase(it) : std::next(it);
    }
    ScheduleTick(thread);
  });
}

void HttpServer::Drain() {
  for (const auto& thread : threads_) {
    asio::post(thread->context, [each = thread.get()] {
      for (const auto& connection : each->connections) connection->Drain();
    });
  }
}

void HttpServer::Shutdown(absl::Time deadline) {
  if (std::exchange(is_shut_down_, true)) return;
  asio::post(threads_.front()->context, [this] {
    ErrorCode ignored;
    listener_->tcp_acceptor.close(ignored);
    listener_->unix_acceptor.close(ignored);
    listener_->retry.cancel();
  });
  for (const auto& thread : threads_) {
    asio::post(thread->context, [each = thread.get(), deadline] {
      each->is_stopping = true;
      for (const auto& connection : each->connections) connection->Drain();
      // At the deadline whoever is left is cut off; their exchanges end on their own.
      each->tick.expires_after(
          absl::ToChronoMilliseconds(std::max(deadline - absl::Now(), absl::ZeroDuration())));
      each->tick.async_wait([each](ErrorCode /*error*/) {
        for (const auto& connection : each->connections) connection->CutOff();
        each->connections.clear();
      });
      each->guard.reset();
    });
  }
  for (const auto& thread : threads_) {
    if (thread->thread.joinable()) thread->thread.join();
  }
  if (options_.address.is_unix()) unlink(options_.address.path.c_str());
}

}  // namespace pagoda::daemon
