// The first message of a stream on an open channel after a quiet while, on a device whose steps
// take no time; beside it the same without the quiet.
//
// usage: idle_latency_bench [SAMPLES] [IDLE_SECONDS]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/bench/daemon_probe.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::bench {
namespace {

// Milliseconds from the call to its first message.
double FirstMessageMs(v1::InferenceService::Stub& stub) {
  const absl::Time start = absl::Now();
  e2e::OpenStream stream(stub, e2e::TextRequest("Once upon a time", 1));
  const bool read = stream.Read();
  const double ms = absl::ToDoubleMilliseconds(absl::Now() - start);
  if (!read || !stream.Finish().ok()) {
    std::fprintf(stderr, "a call failed: %s\n", stream.result.status.error_message().c_str());
    std::exit(1);
  }
  return ms;
}

int Run(int num_samples, double idle_seconds) {
  auto daemon = e2e::TestDaemon::Start({.flags = {"--device=sim",
                                                  "--sim-base-us=0",
                                                  "--sim-per-token-us=0",
                                                  "--sim-per-context-token-ns=0"}});
  if (!daemon.ok()) {
    std::fprintf(stderr, "%s\n", daemon.status().ToString().c_str());
    return 1;
  }
  FirstMessageMs((*daemon)->stub());
  std::vector<double> busy, idle;
  for (int i = 0; i < num_samples; ++i) {
    busy.push_back(FirstMessageMs((*daemon)->stub()));
    // Not a multiple of gRPC's poll interval, so that samples meet every phase of it.
    absl::SleepFor(absl::Seconds(idle_seconds) + absl::Milliseconds(37 * i));
    idle.push_back(FirstMessageMs((*daemon)->stub()));
  }
  std::sort(busy.begin(), busy.end());
  std::sort(idle.begin(), idle.end());
  std::printf(
      "without the quiet: median %.3f ms, worst %.3f ms\n", busy[busy.size() / 2], busy.back());
  bool reached = Print({"first message after idleness, median", "ms", 10.0, idle[idle.size() / 2]});
  reached &= Print({"first message after idleness, worst", "ms", 30.0, idle.back()});
  return reached ? 0 : 1;
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) {
  return pagoda::bench::Run(argc > 1 ? std::atoi(argv[1]) : 20,
                            argc > 2 ? std::atof(argv[2]) : 5.0);
}
