// Many concurrent event streams by HTTP at a steady pace: the simulated device makes one token for
// each every 50 ms, and the daemon's one I/O thread has to pass every one on in time. What a core
// of the threads that make and write events gives is told too, beside what it could give if it did
// nothing but the kernel's part of a write.
//
// usage: http_streams_bench [STREAMS] [TOKENS] [STEP_MS]

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/bench/daemon_probe.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::bench {
namespace {

// At the start prompts come in and at the end streams leave; between them every stream is alive.
constexpr int kEdgeTokens = 20;

struct Stream {
  int fd = -1;
  int num_events = 0;
  absl::Time first, last;  // event
  std::string tail;        // of what came, for an event's start cut in two
  bool done = false;
};

// One epoll loop over all streams.
class Streams {
 public:
  Streams(int port, int num_streams, const std::string& request) : streams_(num_streams) {
    for (Stream& stream : streams_) {
      stream.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      address.sin_port = htons(static_cast<uint16_t>(port));
      if (connect(stream.fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
          write(stream.fd, request.data(), request.size()) !=
              static_cast<ssize_t>(request.size())) {
        std::perror("connect");
        std::exit(1);
      }
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.ptr = &stream;
      epoll_ctl(epoll_, EPOLL_CTL_ADD, stream.fd, &event);
    }
    num_open_ = num_streams;
  }
  ~Streams() {
    for (const Stream& stream : streams_) close(stream.fd);
    close(epoll_);
  }

  // Until the time, or the last stream has ended.
  void ReadUntil(absl::Time end) {
    epoll_event events[256];
    while (num_open_ > 0 && absl::Now() < end) {
      const int num_ready = epoll_wait(epoll_, events, 256, 10);
      for (int i = 0; i < num_ready; ++i) Read(static_cast<Stream*>(events[i].data.ptr));
    }
  }
  const std::vector<Stream>& streams() const { return streams_; }
  int64_t num_events() const { return num_events_; }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  void Read(Stream* stream) {
    char bytes[65536];
    const ssize_t size = read(stream->fd, bytes, sizeof(bytes));
    if (size <= 0) return End(stream);
    num_bytes_ += size;
    const std::string text = stream->tail + std::string(bytes, static_cast<size_t>(size));
    int num_events = 0;
    size_t at = 0;
    for (size_t found; (found = text.find("data: {", at)) != std::string::npos; at = found + 7)
      ++num_events;
    if (num_events > 0) {
      stream->last = absl::Now();
      if (stream->num_events == 0) stream->first = stream->last;
      stream->num_events += num_events;
      num_events_ += num_events;
    }
    stream->done = absl::StrContains(text, "data: [DONE]");
    stream->tail = text.substr(std::max(at, text.size() - std::min<size_t>(text.size(), 11)));
    if (stream->done) End(stream);
  }
  void End(Stream* stream) {
    epoll_ctl(epoll_, EPOLL_CTL_DEL, stream->fd, nullptr);
    --num_open_;
  }

  const int epoll_ = epoll_create1(EPOLL_CLOEXEC);
  std::vector<Stream> streams_;
  int num_open_ = 0;
  int64_t num_events_ = 0;
  int64_t num_bytes_ = 0;
};

std::string RequestText(int num_tokens) {
  const std::string body = absl::StrCat("{\"prompt\":\"Once upon a time\",\"stream\":true,",
                                        "\"ignore_eos\":true,\"max_tokens\":",
                                        num_tokens,
                                        "}");
  return absl::StrCat("POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n",
                      "Content-Length: ",
                      body.size(),
                      "\r\n\r\n",
                      body);
}

// Processor time of a thread that sends so many bytes to each of as many sockets, in turn.
double SecondsPerSend(int num_sockets, size_t bytes) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener, num_sockets) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::perror("bind");
    std::exit(1);
  }
  std::vector<int> readers, writers;
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  for (int i = 0; i < num_sockets; ++i) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = readers.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    connect(event.data.fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    epoll_ctl(epoll, EPOLL_CTL_ADD, event.data.fd, &event);
    const int one = 1;
    setsockopt(writers.emplace_back(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)),
               IPPROTO_TCP,
               TCP_NODELAY,
               &one,
               sizeof(one));
  }
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    epoll_event events[256];
    char buffer[65536];
    while (!stop) {
      const int num_ready = epoll_wait(epoll, events, 256, 10);
      for (int i = 0; i < num_ready; ++i) {
        while (recv(events[i].data.fd, buffer, sizeof(buffer), MSG_DONTWAIT) > 0) {
        }
      }
    }
  });
  const std::string event(bytes, 'x');
  const auto cpu_seconds = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  constexpr int kRounds = 40;
  const double start = cpu_seconds();
  for (int round = 0; round < kRounds; ++round) {
    for (const int fd : writers) send(fd, event.data(), event.size(), MSG_NOSIGNAL);
    absl::SleepFor(absl::Milliseconds(20));  // the readers catch up
  }
  const double seconds = (cpu_seconds() - start) / kRounds / num_sockets;
  stop = true;
  reader.join();
  for (const int fd : readers) close(fd);
  for (const int fd : writers) close(fd);
  close(epoll);
  close(listener);
  return seconds;
}

struct Threads {
  double front_door = 0.0, all = 0.0;  // cores
};

Threads CoresSince(const std::map<std::string, double>& before, pid_t pid, double seconds) {
  Threads cores;
  for (auto [name, cpu] : CpuSecondsByThread(pid)) {
    const auto old = before.find(name);
    cpu -= old == before.end() ? 0.0 : old->second;
    cores.all += cpu / seconds;
    if (name == "http" || name == "output") cores.front_door += cpu / seconds;
    if (cpu / seconds > 0.005)
      std::printf("  threads %-16s %.3f cores\n", name.c_str(), cpu / seconds);
  }
  return cores;
}

int Run(int num_streams, int num_tokens, double step_ms) {
  const double tokens_per_second = 1000.0 / step_ms;
  auto started =
      e2e::TestDaemon::Start({.flags = {"--device=sim",
                                        absl::StrCat("--sim-base-us=", step_ms * 1000.0),
                                        "--sim-per-token-us=0",
                                        "--sim-per-context-token-ns=0",
                                        "--http-threads=1",
                                        "--output-threads=1",
                                        absl::StrCat("--max-num-seqs=", num_streams),
                                        absl::StrCat("--max-waiting-requests=", 2 * num_streams)},
                              .with_http = true});
  if (!started.ok()) {
    std::fprintf(stderr, "%s\n", started.status().ToString().c_str());
    return 1;
  }
  e2e::TestDaemon& daemon = **started;
  { Streams(daemon.http_port(), 1, RequestText(4)).ReadUntil(absl::Now() + absl::Seconds(10)); }
  const uint64_t idle_bytes = ResidentBytes(daemon.pid());
  Streams streams(daemon.http_port(), num_streams, RequestText(num_tokens));
  const absl::Time begin = absl::Now() + absl::Milliseconds(step_ms * kEdgeTokens);
  streams.ReadUntil(begin);
  const auto cpu_begin = CpuSecondsByThread(daemon.pid());
  const int64_t events_begin = streams.num_events();
  const absl::Time measured_from = absl::Now();
  streams.ReadUntil(begin + absl::Milliseconds(step_ms * (num_tokens - 2 * kEdgeTokens)));
  const double seconds = absl::ToDoubleSeconds(absl::Now() - measured_from);
  const Threads cores = CoresSince(cpu_begin, daemon.pid(), seconds);
  const double events_per_second =
      static_cast<double>(streams.num_events() - events_begin) / seconds;
  const uint64_t busy_bytes = ResidentBytes(daemon.pid());
  streams.ReadUntil(absl::Now() + absl::Seconds(120));

  double slowest = 1e9, fastest = 0.0;
  for (const Stream& stream : streams.streams()) {
    // The last event only ends the choice.
    if (!stream.done || stream.num_events < num_tokens / 2) {
      std::fprintf(stderr, "a stream failed after %d events\n", stream.num_events);
      return 1;
    }
    const double pace = (num_tokens - 1) / absl::ToDoubleSeconds(stream.last - stream.first);
    slowest = std::min(slowest, pace);
    fastest = std::max(fastest, pace);
  }
  std::printf("%d streams of %d tokens: %.2f to %.2f tokens/s each\n",
              num_streams,
              num_tokens,
              slowest,
              fastest);
  std::printf("%.0f events/s of %.0f tokens/s that were due\n",
              events_per_second,
              num_streams * tokens_per_second);
  bool reached =
      Print({"pace of the slowest stream", "tokens/s", 0.95 * tokens_per_second, slowest, false});
  reached &= Print({"cores of the daemon", "cores", 1.0, cores.all});
  // Tokens without text of their own make no event.
  const double tokens_per_event = static_cast<double>(num_streams) * num_tokens /
                                  static_cast<double>(streams.num_events() - num_streams);
  const double send_seconds =
      SecondsPerSend(num_streams, static_cast<size_t>(streams.num_bytes() / streams.num_events()));
  Print({"events a core, of sends alone", "events/s", 125000.0, 1.0 / send_seconds, false});
  Print({"events a core of the front door",
         "events/s",
         1.0 / send_seconds,
         events_per_second / cores.front_door,
         false});
  Print({"tokens a core of the front door",
         "tokens/s",
         125000.0,
         tokens_per_event * events_per_second / cores.front_door,
         false});
  Print({"tokens a core of the daemon",
         "tokens/s",
         125000.0,
         tokens_per_event * events_per_second / cores.all,
         false});
  const double kib_per_stream =
      (static_cast<double>(busy_bytes) - static_cast<double>(idle_bytes)) / 1024.0 / num_streams;
  reached &= Print({"resident memory per stream", "KiB", 60.0, kib_per_stream});
  return reached ? 0 : 1;
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) {
  const int num_streams = argc > 1 ? std::atoi(argv[1]) : 2000;
  const int num_tokens = argc > 2 ? std::atoi(argv[2]) : 200;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const double step_ms = argc > 3 ? std::atof(argv[3]) : 50.0;
  return pagoda::bench::Run(num_streams, num_tokens, step_ms);
}
