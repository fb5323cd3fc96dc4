#pragma once

#include <memory>
#include <string>
#include <sys/types.h>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "pagoda/v1/inference.grpc.pb.h"

namespace pagoda::e2e {

// The pagoda executable under test: $PAGODA_BINARY, else the one of this build.
std::string PagodaBinary();

// $PAGODA_CONFORMANCE_DIR, else ../shared/conformance beside the sources; absent when there is no
// such folder.
absl::optional<std::string> ConformanceDir();

// $PAGODA_DEVICE, what daemons are started on unless their flags say otherwise; else "cpu".
std::string DeviceUnderTest();
// Whether an output is the same bit by bit whatever else is in a batch; elsewhere (cuda) another
// kernel may compute a row, and where the best two log-probabilities are within kNearTie either may
// come.
bool IsExactDevice();
inline constexpr float kNearTie = 0.3f;
// The most precise type of the device, where the model's own would round too much.
std::vector<std::string> PreciseFlags();

// deploy/models/fable-7m of $PAGODA_SOURCE_DIR, else of the sources of this build.
std::string DefaultModelDir();

struct TestDaemonOptions {
  std::string model_dir = DefaultModelDir();
  // Added last: later flags win.
  std::vector<std::string> flags;
  // Of the socket and the log, for a daemon that follows another there; empty: one of its own,
  // which goes with it.
  std::string dir;
  // False: Start returns as soon as the process runs.
  bool wait_until_serving = true;
  // Served at a port of 127.0.0.1 rather than at a socket in `dir`.
  bool over_tcp = false;
  // Shown when asking whether it serves, where the flags name keys.
  std::string api_key;
  // With the HTTP API, at a free port of 127.0.0.1.
  bool with_http = false;
};

// A real `pagoda serve` process with private addresses (a Unix socket in a temporary folder, a free
// metrics port). Killed when destroyed. Thread-compatible.
class TestDaemon {
 public:
  static absl::StatusOr<std::unique_ptr<TestDaemon>> Start(TestDaemonOptions options);
  ~TestDaemon();

  pid_t pid() const { return pid_; }
  // Processes whose parent is the daemon.
  std::vector<pid_t> WorkerPids() const;
  const std::string& grpc_address() const { return grpc_address_; }
  // REQUIRES: with_http.
  int http_port() const { return http_port_; }
  // A stub on a channel of its own.
  std::unique_ptr<v1::InferenceService::Stub> NewStub() const;
  v1::InferenceService::Stub& stub() { return *stub_; }

  // The body of GET /metrics.
  absl::StatusOr<std::string> ScrapeMetrics() const;
  // Value of the sample whose name and labels begin with `series`, such as
  // `pagoda_requests_running{`; sums them.
  absl::StatusOr<double> Metric(absl::string_view series) const;
  // Standard error so far.
  std::string Log() const;

  void Signal(int signal);
  // Exit code, or 128 + signal; DEADLINE_EXCEEDED when it still runs.
  absl::StatusOr<int> WaitForExit(absl::Duration timeout);
  // Waits until `condition` holds, polling; false at the timeout.
  template <typename Condition>
  static bool Eventually(absl::Duration timeout, Condition condition) {
    const absl::Time deadline = absl::Now() + timeout;
    while (!condition()) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(2));
    }
    return true;
  }

 private:
  TestDaemon() = default;

  pid_t pid_ = -1;
  absl::optional<int> exit_code_;
  std::string dir_;
  bool owns_dir_ = false;
  std::string grpc_address_;
  int metrics_port_ = 0;
  int http_port_ = 0;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
};

// Runs the executable with `arguments` to its end: exit code and everything it wrote.
struct CommandResult {
  int exit_code = -1;
  std::string out;
  std::string err;
};
CommandResult RunPagoda(const std::vector<std::string>& arguments,
                        absl::Duration timeout = absl::Seconds(30),
                        absl::string_view standard_input = "");

// A `pagoda` command that runs beside the test; killed when destroyed.
class PagodaProcess {
 public:
  // Its standard error goes to `log`, all else nowhere.
  explicit PagodaProcess(const std::vector<std::string>& arguments,
                         const std::string& log = "/dev/null");
  ~PagodaProcess();
  PagodaProcess(const PagodaProcess&) = delete;
  PagodaProcess& operator=(const PagodaProcess&) = delete;

  void Signal(int signal) const;

 private:
  pid_t pid_ = -1;
};

}  // namespace pagoda::e2e
