// What clients see of a stop and of workers that fail: SIGTERM under 64 streams, with time to
// finish and without; and how soon readiness turns, and turns back, when workers are stopped, lost
// or hang.
//
// usage: drain_bench [JSON-FILE]

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <signal.h>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/bench/daemon_probe.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/health_watch.h"
#include "tests/e2e/test_daemon.h"
#include "tests/e2e/worker_faults.h"

namespace pagoda::bench {
namespace {

constexpr int kNumStreams = 64;
constexpr uint32_t kNumTokens = 100;
constexpr double kReadinessSeconds = 2.0;

std::unique_ptr<e2e::TestDaemon> Start(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"--device=sim", "--sim-base-us=20000", "--log-level=warning"});
  auto started = e2e::TestDaemon::Start({.flags = std::move(flags)});
  if (started.ok()) return *std::move(started);
  std::fprintf(stderr, "%s\n", started.status().ToString().c_str());
  std::exit(1);
}

v1::GenerateRequest StreamOf(uint32_t num_tokens) {
  v1::GenerateRequest request = e2e::TextRequest("Once upon a time", num_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

double SecondsSince(absl::Time begin) { return absl::ToDoubleSeconds(absl::Now() - begin); }

struct Drain {
  double unready_ms = 0;
  int num_complete = 0, num_unavailable = 0;
  double exit_seconds = 0;
  int exit_code = -1;
};

Drain RunDrain(const std::string& drain_timeout, uint32_t num_tokens) {
  const auto daemon = Start({"--drain-timeout=" + drain_timeout});
  e2e::HealthWatch watch(daemon->grpc_address());
  watch.ReadUntil(true);
  std::vector<std::unique_ptr<v1::InferenceService::Stub>> stubs;
  std::vector<std::unique_ptr<e2e::OpenStream>> streams;
  for (int i = 0; i < kNumStreams; ++i) {
    stubs.push_back(daemon->NewStub());
    streams.push_back(std::make_unique<e2e::OpenStream>(*stubs.back(), StreamOf(num_tokens)));
  }
  for (const auto& stream : streams) stream->ReadFirstToken();
  Drain drain;
  const absl::Time begin = absl::Now();
  daemon->Signal(SIGTERM);
  watch.ReadUntil(false);
  drain.unready_ms = 1000 * SecondsSince(begin);
  for (const auto& stream : streams) {
    const grpc::Status status = stream->Finish();
    const bool is_whole = stream->result.first().token_ids.size() == num_tokens;
    drain.num_complete += status.ok() && is_whole ? 1 : 0;
    drain.num_unavailable += status.error_code() == grpc::StatusCode::UNAVAILABLE ? 1 : 0;
  }
  drain.exit_code = daemon->WaitForExit(absl::Seconds(60)).value_or(-1);
  drain.exit_seconds = SecondsSince(begin);
  return drain;
}

void RunDrains(Report* report) {
  const Drain whole = RunDrain("30s", kNumTokens);
  report->Add({"not ready after SIGTERM", "ms", 100, whole.unready_ms});
  report->Add({"of 64 streams that end well",
               "streams",
               kNumStreams,
               static_cast<double>(whole.num_complete),
               false});
  report->Add({"exit code when all ended well", "", 0, static_cast<double>(whole.exit_code)});
  report->Note("exit after SIGTERM", "s", whole.exit_seconds);
  const Drain cut = RunDrain("1s", 2000);
  report->Add({"of 64 longer streams told UNAVAILABLE",
               "streams",
               kNumStreams,
               static_cast<double>(cut.num_unavailable),
               false});
  report->Add({"exit after SIGTERM with a limit of 1 s", "s", 2.0, cut.exit_seconds});
  report->Add({"exit code when some were cut off, off 13", "", 0, std::abs(cut.exit_code - 13.0)});
}

// From the fault, or where workers bring it about the last token before it, to the word that nobody
// computes; and from then, or from SIGCONT where that ends it, to the word that somebody does.
void RunFault(const std::string& name, const std::string& hooks, int signal, Report* report) {
  const e2e::WorkerFaults faults(hooks);
  const auto daemon = Start({});
  e2e::HealthWatch watch(daemon->grpc_address());
  watch.ReadUntil(true);
  e2e::OpenStream stream(daemon->stub(), StreamOf(400));
  std::atomic<int64_t> last_ns{0};
  for (int i = 0; i < 20 && stream.Read(); ++i) {
  }
  std::thread reader([&] {
    while (stream.Read()) last_ns.store(absl::GetCurrentTimeNanos());
  });
  const auto signal_all = [&](int number) {
    for (const pid_t worker : daemon->WorkerPids()) kill(worker, number);
  };
  absl::Time begin = absl::Now();
  if (signal != 0) signal_all(signal);
  watch.ReadUntil(false);
  if (signal == 0) begin = absl::FromUnixNanos(last_ns.load());
  report->Add({"not ready: " + name, "s", kReadinessSeconds, SecondsSince(begin)});
  begin = absl::Now();
  if (signal == SIGSTOP) signal_all(SIGCONT);
  watch.ReadUntil(true);
  report->Add({"ready again: " + name, "s", kReadinessSeconds, SecondsSince(begin)});
  reader.join();
  const bool is_whole = stream.Finish().ok() && stream.result.first().token_ids.size() == 400;
  report->Add({"whole streams: " + name, "", 1, is_whole ? 1.0 : 0.0, false});
}

int Run(const char* json_path) {
  Report report("drain_bench");
  RunDrains(&report);
  RunFault("stopped", "", SIGSTOP, &report);
  RunFault("hangs", "hang@80:0:1", 0, &report);
  return report.Write(json_path) && report.reached() ? 0 : 1;
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) { return pagoda::bench::Run(argc > 1 ? argv[1] : nullptr); }
