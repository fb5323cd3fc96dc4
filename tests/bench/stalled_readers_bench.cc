// Readers that take nothing beside readers that do: what the first cost in memory, that all of them
// are cut off, and how little the others feel.
//
// usage: stalled_readers_bench http|grpc|both [READERS of each]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "tests/bench/daemon_probe.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/http_client.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::bench {
namespace {

constexpr double kStepMs = 50.0;
constexpr int kNumLive = 20;
constexpr int kLiveTokens = 150;
constexpr int kStalledTokens = 2000;
constexpr int kLogprobs = 20;

v1::GenerateRequest Request(int num_tokens) {
  v1::GenerateRequest request =
      e2e::TextRequest("Once upon a time", static_cast<uint32_t>(num_tokens));
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

nlohmann::json Body(int num_tokens) {
  return {{"prompt", "Once upon a time"},
          {"max_tokens", num_tokens},
          {"ignore_eos", true},
          {"stream", true}};
}

// By which APIs, and how many readers each.
struct Load {
  bool http = false, grpc = false;
  int num_readers = 0;  // of each

  int total() const { return num_readers * (http + grpc); }
};

// One stream that is read as it comes: milliseconds per token after the first.
double ReadLive(e2e::TestDaemon& daemon, bool http) {
  absl::Time first, last;
  int num_tokens = 0;
  const auto note = [&](int more) {
    if (more == 0) return;
    last = absl::Now();
    if (num_tokens == 0) first = last;
    num_tokens += more;
  };
  if (http) {
    e2e::HttpClient client(daemon.http_port());
    client.Post("/v1/completions", Body(kLiveTokens).dump());
    const e2e::HttpResponse head = client.ReadHead();
    if (head.status != 200) std::fprintf(stderr, "a reader got HTTP %d\n", head.status);
    // An event may bring several tokens; the end says that all have come.
    for (std::string event = client.ReadEvent(); !event.empty(); event = client.ReadEvent()) {
      note(event.find("\"text\":") != std::string::npos ? 1 : 0);
      if (event == "data: [DONE]") num_tokens = kLiveTokens;
    }
  } else {
    const auto stub = daemon.NewStub();
    grpc::ClientContext context;
    const auto reader = stub->StreamGenerate(&context, e2e::AsStream(Request(kLiveTokens)));
    for (v1::StreamGenerateResponse message; reader->Read(&message);)
      note(message.delta().token_ids_size());
    reader->Finish();
  }
  if (num_tokens < kLiveTokens) return 1e9;  // it did not get all
  return absl::ToDoubleMilliseconds(last - first) / (num_tokens - 1);
}

struct Pace {
  double mean_ms = 0.0, slowest_ms = 0.0;
};

// Of several streams beside each other.
Pace ReadSeveral(e2e::TestDaemon& daemon, const Load& load) {
  std::vector<double> ms_per_token(kNumLive);
  std::vector<std::thread> threads;
  for (int i = 0; i < kNumLive; ++i) {
    const bool http = load.http && (!load.grpc || i % 2 == 0);
    threads.emplace_back([&, http, i] { ms_per_token[i] = ReadLive(daemon, http); });
  }
  for (std::thread& thread : threads) thread.join();
  return {.mean_ms = std::accumulate(ms_per_token.begin(), ms_per_token.end(), 0.0) / kNumLive,
          .slowest_ms = *std::max_element(ms_per_token.begin(), ms_per_token.end())};
}

// Memory that the kernel has for TCP.
double TcpBytes() {
  std::ifstream in("/proc/net/sockstat");
  std::string word;
  double pages = 0;
  while (in >> word && word != "mem") {
  }
  in >> pages;
  return pages * 4096.0;
}

// Clients that ask for much and take nothing.
class Stalled {
 public:
  Stalled(e2e::TestDaemon& daemon, const Load& load) {
    v1::GenerateRequest request = Request(kStalledTokens);
    request.mutable_output()->set_logprobs(kLogprobs);
    nlohmann::json body = Body(kStalledTokens);
    body["logprobs"] = kLogprobs;
    for (int i = 0; i < load.num_readers; ++i) {
      if (load.http) {
        clients_.push_back(
            std::make_unique<e2e::HttpClient>(daemon.http_port(), /*receive_bytes=*/4096));
        clients_.back()->Post("/v1/completions", body.dump());
      }
      if (load.grpc) {
        stubs_.push_back(daemon.NewStub());
        // They wait for the daemon's end, not for a limit of their own.
        streams_.push_back(
            std::make_unique<e2e::OpenStream>(*stubs_.back(), request, absl::Minutes(10)));
      }
    }
  }
  // How many were ended for being slow, as far as a client can see it: by the status, or without
  // the end of the stream.
  int NumCutOff() {
    int num = 0;
    for (const auto& stream : streams_)
      num += stream->Finish().error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ? 1 : 0;
    for (const auto& client : clients_) {
      bool done = client->ReadHead().status != 200;
      for (std::string event = client->ReadEvent(); !event.empty(); event = client->ReadEvent())
        done = done || event == "data: [DONE]";
      num += done ? 0 : 1;
    }
    return num;
  }

 private:
  std::vector<std::unique_ptr<e2e::HttpClient>> clients_;
  std::vector<std::unique_ptr<v1::InferenceService::Stub>> stubs_;
  std::vector<std::unique_ptr<e2e::OpenStream>> streams_;
};

int Run(const Load& load) {
  const int num_readers = load.total();
  auto started = e2e::TestDaemon::Start(
      {.flags = {"--device=sim",
                 absl::StrCat("--sim-base-us=", kStepMs * 1000.0),
                 "--sim-per-token-us=0",
                 "--sim-per-context-token-ns=0",
                 "--stream-stall-timeout=20s",
                 absl::StrCat("--max-num-seqs=", num_readers + kNumLive),
                 absl::StrCat("--max-waiting-requests=", 2 * num_readers + kNumLive)},
       .with_http = true});
  if (!started.ok()) {
    std::fprintf(stderr, "%s\n", started.status().ToString().c_str());
    return 1;
  }
  e2e::TestDaemon& daemon = **started;
  const Pace alone = ReadSeveral(daemon, load);
  const double before = static_cast<double>(ResidentBytes(daemon.pid()));
  const double tcp_before = TcpBytes();
  Pace beside;
  double most = before, most_tcp = tcp_before;
  const absl::Time start = absl::Now();
  Stalled stalled(daemon, load);
  const auto num_running = [&] { return daemon.Metric("pagoda_requests_running{").value_or(-1); };
  e2e::TestDaemon::Eventually(absl::Seconds(20), [&] { return num_running() >= num_readers; });
  std::thread live([&] { beside = ReadSeveral(daemon, load); });
  const bool ended = e2e::TestDaemon::Eventually(absl::Seconds(240), [&] {
    most = std::max(most, static_cast<double>(ResidentBytes(daemon.pid())));
    most_tcp = std::max(most_tcp, TcpBytes());
    absl::SleepFor(absl::Milliseconds(100));
    return daemon.Metric("pagoda_stream_stalls_total").value_or(0) >= num_readers;
  });
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  live.join();
  const double num_cut_off = stalled.NumCutOff();
  std::printf("%d readers by %s; the last was cut off after %.1f s; kernel memory %.0f KiB each\n",
              num_readers,
              !load.grpc  ? "HTTP"
              : load.http ? "HTTP and gRPC"
                          : "gRPC",
              seconds,
              (most_tcp - tcp_before) / 1024.0 / num_readers);
  const double readers = num_readers;
  bool reached =
      Print({"memory of a stalled reader", "KiB", 256, (most - before) / 1024 / readers});
  reached &= Print({"stalled readers cut off", "readers", readers, num_cut_off, false});
  Print({"time per token of others, alone", "ms", 1.01 * kStepMs, alone.mean_ms});
  reached &=
      Print({"time per token of others, beside", "ms", 1.01 * alone.mean_ms, beside.mean_ms});
  Print({"the slowest of others, beside", "ms", 1.01 * alone.slowest_ms, beside.slowest_ms});
  reached &= ended && Print({"requests left", "requests", 0, num_running()});
  return reached ? 0 : 1;
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const std::string api = argc > 1 ? argv[1] : "both";
  return pagoda::bench::Run({.http = api != "grpc",
                             .grpc = api != "http",
                             .num_readers = argc > 2 ? std::atoi(argv[2]) : 1000});
}
