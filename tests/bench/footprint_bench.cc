// Memory and start of `pagoda serve` with the default model: resident memory of the daemon and its
// worker beside the KV pool, and the time from the start of the process until it serves.
//
// usage: footprint_bench [STARTS]

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

constexpr double kMiB = 1024.0 * 1024.0;

int Run(int num_starts) {
  std::vector<double> ready_seconds;
  double daemon_mib = 0.0, worker_mib = 0.0;
  for (int i = 0; i < num_starts; ++i) {
    const absl::Time start = absl::Now();
    auto daemon = e2e::TestDaemon::Start({});
    if (!daemon.ok()) {
      std::fprintf(stderr, "%s\n", daemon.status().ToString().c_str());
      return 1;
    }
    ready_seconds.push_back(absl::ToDoubleSeconds(absl::Now() - start));
    // A first answer touches what serving needs; it takes one KV block or two of the pool.
    if (!e2e::StreamGenerate((*daemon)->stub(), e2e::TextRequest("Once upon a time", 16))
             .status.ok())
      return 1;
    daemon_mib = std::max(daemon_mib, static_cast<double>(ResidentBytes((*daemon)->pid())) / kMiB);
    for (const pid_t worker : (*daemon)->WorkerPids()) {
      worker_mib = std::max(worker_mib, static_cast<double>(ResidentBytes(worker)) / kMiB);
    }
  }
  std::sort(ready_seconds.begin(), ready_seconds.end());
  std::printf("daemon %.1f MiB, worker %.1f MiB; of the KV pool only what was used is resident\n",
              daemon_mib,
              worker_mib);
  bool reached = Print({"resident memory, daemon + worker", "MiB", 150.0, daemon_mib + worker_mib});
  reached &= Print({"ready after, median", "s", 1.0, ready_seconds[ready_seconds.size() / 2]});
  return reached ? 0 : 1;
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) { return pagoda::bench::Run(argc > 1 ? std::atoi(argv[1]) : 5); }
