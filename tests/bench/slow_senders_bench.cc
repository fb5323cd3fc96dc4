// Senders of the largest messages that never come to their end: what they cost in memory together,
// and that others are served beside them.
//
// usage: slow_senders_bench http|grpc [SENDERS] [MESSAGE_BYTES]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <netinet/in.h>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/bench/daemon_probe.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/http_client.h"
#include "tests/e2e/slow_sender.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::bench {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr char kMethod[] = "/pagoda.v1.InferenceService/Generate";
// Of the largest size, that an API holds (README), and what a connection may take beside.
constexpr double kMostMessages = 16;
constexpr double kConnectionBytes = 256 * 1024;
// Nobody gets on any more.
constexpr absl::Duration kQuiet = absl::Seconds(3);

// One request by HTTP that stays a byte short.
class SlowPost {
 public:
  SlowPost(int port, size_t body_bytes) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    ended_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0;
    fcntl(fd_, F_SETFL, O_NONBLOCK);
    const std::string head = absl::StrCat(
        "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: ",
        body_bytes,
        "\r\n\r\n");
    ended_ = ended_ || send(fd_, head.data(), head.size(), MSG_NOSIGNAL) < 0;
    num_unsent_ = body_bytes;
  }
  ~SlowPost() { close(fd_); }

  size_t Send(size_t most_bytes) {
    static const std::string blanks(kPieceBytes, ' ');
    char reply[4096];
    if (recv(fd_, reply, sizeof(reply), MSG_DONTWAIT) >= 0) ended_ = true;
    if (ended_) return 0;
    const ssize_t size =
        send(fd_, blanks.data(), std::min({most_bytes, blanks.size(), num_unsent_}), MSG_NOSIGNAL);
    if (size <= 0) return 0;
    num_unsent_ -= static_cast<size_t>(size);
    return static_cast<size_t>(size);
  }
  size_t num_unsent() const { return num_unsent_; }
  bool ended() const { return ended_; }

 private:
  const int fd_;
  size_t num_unsent_ = 0;
  bool ended_ = false;
};

struct Held {
  double most_bytes = 0.0;
  int num_ended = 0;
};

// Everybody sends as much as is taken, until nobody gets on.
template <typename Sender>
Held SendAll(pid_t pid, std::vector<std::unique_ptr<Sender>>* senders) {
  Held held;
  absl::Time last = absl::Now();
  while (absl::Now() - last < kQuiet) {
    size_t num_sent = 0;
    for (const auto& sender : *senders)
      num_sent += sender->Send(std::min(kPieceBytes, sender->num_unsent() - 1));
    if (num_sent > 0) last = absl::Now();
    if (num_sent == 0) absl::SleepFor(absl::Milliseconds(10));
    held.most_bytes = std::max(held.most_bytes, static_cast<double>(ResidentBytes(pid)));
  }
  for (const auto& sender : *senders) held.num_ended += sender->ended() ? 1 : 0;
  return held;
}

int Run(bool http, int num_senders, size_t message_bytes) {
  auto started = e2e::TestDaemon::Start(
      {.flags = {"--device=sim", absl::StrCat("--max-message-bytes=", message_bytes)},
       .with_http = true});
  if (!started.ok()) {
    std::fprintf(stderr, "%s\n", started.status().ToString().c_str());
    return 1;
  }
  e2e::TestDaemon& daemon = **started;
  e2e::Generate(daemon.stub(), e2e::TextRequest("Once", 4));
  const auto resident = [&] { return static_cast<double>(ResidentBytes(daemon.pid())); };
  const double before = resident();
  std::vector<std::unique_ptr<SlowPost>> posts;
  std::vector<std::unique_ptr<e2e::SlowSender>> calls;
  for (int i = 0; i < num_senders; ++i) {
    if (http) {
      posts.push_back(std::make_unique<SlowPost>(daemon.http_port(), message_bytes));
    } else {
      calls.push_back(std::make_unique<e2e::SlowSender>(
          daemon.grpc_address(), kMethod, static_cast<uint32_t>(message_bytes)));
    }
  }
  const Held held = http ? SendAll(daemon.pid(), &posts) : SendAll(daemon.pid(), &calls);
  int num_served = 0;
  for (int i = 0; i < 20; ++i) {
    const auto call =
        e2e::Generate(*daemon.NewStub(), e2e::TextRequest("Once", 4), absl::Seconds(10));
    num_served += call.status.ok() ? 1 : 0;
  }
  posts.clear();
  calls.clear();
  const double mib = 1 << 20;
  std::printf("%d senders of %.1f MiB by %s, %.0f MiB if all were held; %d were ended\n",
              num_senders,
              static_cast<double>(message_bytes) / mib,
              http ? "HTTP" : "gRPC",
              static_cast<double>(message_bytes) * num_senders / mib,
              held.num_ended);
  bool reached = Print(
      {"memory of slow senders",
       "MiB",
       (kMostMessages * static_cast<double>(message_bytes) + kConnectionBytes * num_senders) / mib,
       (held.most_bytes - before) / mib});
  reached &=
      Print({"calls served beside them", "calls", 20, static_cast<double>(num_served), false});
  return reached ? 0 : 1;
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const bool http = argc < 2 || std::strcmp(argv[1], "http") == 0;
  const int num_senders = argc > 2 ? std::atoi(argv[2]) : 500;
  const long message_bytes = argc > 3 ? std::atol(argv[3]) : long{64} << 20;
  return pagoda::bench::Run(http, num_senders, static_cast<size_t>(message_bytes));
}
