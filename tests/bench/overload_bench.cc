// Ten times the load that a daemon can carry, on the simulated device: what it still does, how it
// refuses the rest, what memory it takes and how soon it is back; then short requests beside a
// flood of long prompts of the same tenant, of several depths; and two tenants, one of which sends
// ten times as much as the other.
//
// usage: overload_bench [SECONDS] [JSON-FILE]; 0 seconds: the floods and the tenants alone

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "tests/bench/daemon_probe.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::bench {
namespace {

constexpr double kOverload = 10.0;
constexpr int kPromptTokens = 64;
constexpr int kOutputTokens = 32;
constexpr int kLongPromptTokens = 2000;
constexpr int kShortPromptTokens = 128;
// Of floods: requests that run or wait at any time, and the tokens that each generates. More than
// one token makes them fill the cache, and others wait for blocks rather than for steps.
struct Flood {
  int depth;
  int num_output_tokens;
  int num_cached_tokens;  // that the cache holds; 0: as many as there is memory for
};
constexpr Flood kFloods[] = {{24, 1, 0}, {64, 1, 0}, {256, 1, 0}, {256, 64, 0}, {64, 200, 17'000}};
// Of the shipped model, as the daemon prints it.
constexpr int kSimTokenBytes = 4096;
// Capacity is known after so long.
constexpr absl::Duration kMostCapacityTime = absl::Seconds(60);
// Of short requests, and of those that take as long as the load's.
constexpr int kNumProbes = 200;
constexpr int kNumLongProbes = 30;

struct Answer {
  grpc::StatusCode code = grpc::StatusCode::OK;
  bool has_hint = false;
  absl::Time begin, end;
  double Ms() const { return absl::ToDoubleMilliseconds(end - begin); }
};

v1::GenerateRequest NewRequest(int num_prompt_tokens, int num_output_tokens) {
  static std::atomic<uint32_t> next{0};
  v1::GenerateRequest request;
  // No two begin alike.
  uint32_t value = next.fetch_add(1) * 7919 + 1;
  for (int i = 0; i < num_prompt_tokens; ++i) {
    request.mutable_prompt()->mutable_token_ids()->add_ids(value % 4000);
    value = value * 1664525 + 1013904223;
  }
  request.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(num_output_tokens));
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

// Calls that are under way, and the answers of those that are not.
class Calls {
 public:
  explicit Calls(const e2e::TestDaemon& daemon) {
    for (int i = 0; i < 8; ++i) stubs_.push_back(daemon.NewStub());
  }

  void Start(int num_prompt_tokens, int num_output_tokens, const std::string& key = "") {
    auto* const call = new Call{.request = NewRequest(num_prompt_tokens, num_output_tokens)};
    if (!key.empty()) call->context.AddMetadata("authorization", absl::StrCat("Bearer ", key));
    call->answer.begin = absl::Now();
    {
      absl::MutexLock lock(&mutex_);
      ++num_open_;
    }
    stubs_[next_stub_++ % stubs_.size()]->async()->Generate(
        &call->context, &call->request, &call->response, [this, call](const grpc::Status& status) {
          call->answer.end = absl::Now();
          call->answer.code = status.error_code();
          call->answer.has_hint =
              call->context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms") > 0;
          absl::MutexLock lock(&mutex_);
          answers_.push_back(call->answer);
          --num_open_;
          delete call;
        });
  }
  int num_open() const {
    absl::MutexLock lock(&mutex_);
    return num_open_;
  }
  void WaitForAll() {
    const auto is_none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_open_ == 0; };
    absl::MutexLock lock(&mutex_, absl::Condition(&is_none));
  }
  std::vector<Answer> TakeAnswers() {
    absl::MutexLock lock(&mutex_);
    std::vector<Answer> answers;
    answers.swap(answers_);
    return answers;
  }

 private:
  struct Call {
    grpc::ClientContext context;
    v1::GenerateRequest request;
    v1::GenerateResponse response;
    Answer answer;
  };

  std::vector<std::unique_ptr<v1::InferenceService::Stub>> stubs_;
  size_t next_stub_ = 0;
  mutable absl::Mutex mutex_;
  int num_open_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Answer> answers_ ABSL_GUARDED_BY(mutex_);
};

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const auto index = static_cast<size_t>(share * static_cast<double>(values.size()));
  return values[std::min(index, values.size() - 1)];
}

// Milliseconds of requests one after the other.
std::vector<double> ProbeMs(const e2e::TestDaemon& daemon, int num_prompt_tokens, int num_output) {
  Calls calls(daemon);
  const int num_probes = num_output == 1 ? kNumProbes : kNumLongProbes;
  for (int i = 0; i < num_probes; ++i) {
    calls.Start(num_prompt_tokens, num_output);
    calls.WaitForAll();
  }
  std::vector<double> ms;
  for (const Answer& answer : calls.TakeAnswers()) ms.push_back(answer.Ms());
  return ms;
}

struct Window {
  double ok_per_second = 0.0;
  double refusal_p99_ms = 0.0;
  double hinted_share = 0.0;
  double refused_per_second = 0.0;
  size_t num_other = 0;
  uint64_t resident_bytes = 0;
};

Window Describe(const std::vector<Answer>& answers, absl::Time begin, absl::Time end) {
  Window window;
  std::vector<double> refusals;
  double num_hinted = 0, num_ok = 0;
  for (const Answer& answer : answers) {
    if (answer.end < begin || answer.end > end) continue;
    if (answer.code == grpc::StatusCode::OK) {
      ++num_ok;
    } else if (answer.code == grpc::StatusCode::RESOURCE_EXHAUSTED) {
      refusals.push_back(answer.Ms());
      num_hinted += answer.has_hint ? 1 : 0;
    } else {
      ++window.num_other;
    }
  }
  const double seconds = absl::ToDoubleSeconds(end - begin);
  window.ok_per_second = num_ok / seconds;
  window.refused_per_second = static_cast<double>(refusals.size()) / seconds;
  window.hinted_share = refusals.empty() ? 0.0 : num_hinted / static_cast<double>(refusals.size());
  window.refusal_p99_ms = Percentile(std::move(refusals), 0.99);
  return window;
}

// As many at once as may run and wait a little.
Window MeasureCapacity(const e2e::TestDaemon& daemon, absl::Duration time) {
  Calls calls(daemon);
  const absl::Time begin = absl::Now() + absl::Seconds(2), end = begin + time;
  while (absl::Now() < end) {
    while (calls.num_open() < 48) calls.Start(kPromptTokens, kOutputTokens);
    absl::SleepFor(absl::Milliseconds(1));
  }
  const uint64_t bytes = ResidentBytes(daemon.pid());
  calls.WaitForAll();
  Window window = Describe(calls.TakeAnswers(), begin, end);
  window.resident_bytes = bytes;
  return window;
}

Window MeasureOverload(const e2e::TestDaemon& daemon, double rate, absl::Duration time) {
  Calls calls(daemon);
  const absl::Time start = absl::Now(), begin = start + absl::Seconds(2), end = begin + time;
  uint64_t most_bytes = 0;
  double num_started = 0;
  for (absl::Time now = start; now < end; now = absl::Now()) {
    for (; num_started < rate * absl::ToDoubleSeconds(now - start); ++num_started)
      calls.Start(kPromptTokens, kOutputTokens);
    most_bytes = std::max(most_bytes, ResidentBytes(daemon.pid()));
    absl::SleepFor(absl::Milliseconds(1));
  }
  Window window = Describe(calls.TakeAnswers(), begin, end);
  window.resident_bytes = most_bytes;
  calls.WaitForAll();
  return window;
}

// Seconds until a request takes no more than `normal_ms`.
double MeasureRecovery(const e2e::TestDaemon& daemon, double normal_ms) {
  const absl::Time begin = absl::Now();
  Calls calls(daemon);
  while (absl::Now() < begin + absl::Seconds(30)) {
    calls.Start(kPromptTokens, kOutputTokens);
    calls.WaitForAll();
    const Answer answer = calls.TakeAnswers().front();
    if (answer.code == grpc::StatusCode::OK && answer.Ms() <= normal_ms)
      return absl::ToDoubleSeconds(absl::Now() - begin);
  }
  return 30.0;
}

std::unique_ptr<e2e::TestDaemon> Start(std::vector<std::string> flags,
                                       const std::string& key = "") {
  flags.insert(flags.begin(),
               {"--device=sim", "--no-enable-prefix-caching", "--log-level=warning"});
  auto started = e2e::TestDaemon::Start({.flags = std::move(flags), .api_key = key});
  if (started.ok()) return *std::move(started);
  std::fprintf(stderr, "%s\n", started.status().ToString().c_str());
  std::exit(1);
}

// Milliseconds to the only token of short requests.
std::vector<double> ProbeBesideFlood(const e2e::TestDaemon& daemon, const Flood& kind) {
  Calls flood(daemon);
  std::atomic<bool> stops{false};
  std::thread keeper([&] {
    while (!stops) {
      while (flood.num_open() < kind.depth) flood.Start(kLongPromptTokens, kind.num_output_tokens);
      absl::SleepFor(absl::Milliseconds(1));
    }
  });
  absl::SleepFor(absl::Seconds(2));
  std::vector<double> ms = ProbeMs(daemon, kShortPromptTokens, 1);
  stops = true;
  keeper.join();
  flood.WaitForAll();
  return ms;
}

// A device that carries about a hundred requests a second.
std::vector<std::string> LoadedDevice() {
  return {"--sim-base-us=5000",
          "--sim-per-token-us=50",
          "--sim-per-context-token-ns=0",
          "--max-num-seqs=32",
          "--max-num-batched-tokens=1024"};
}

void RunOverload(absl::Duration time, Report* report) {
  std::vector<std::string> flags = LoadedDevice();
  flags.push_back("--max-waiting-requests=64");
  const auto daemon = Start(std::move(flags));
  const double idle_p99 = Percentile(ProbeMs(*daemon, kPromptTokens, kOutputTokens), 0.99);
  const Window capacity = MeasureCapacity(*daemon, std::min(time, kMostCapacityTime));
  const Window overload = MeasureOverload(*daemon, kOverload * capacity.ok_per_second, time);
  const double recovery = MeasureRecovery(*daemon, 1.5 * idle_p99);
  const double memory = static_cast<double>(overload.resident_bytes) /
                        static_cast<double>(std::max<uint64_t>(capacity.resident_bytes, 1));
  report->Note("capacity", "requests/s", capacity.ok_per_second);
  report->Note("refused", "requests/s", overload.refused_per_second);
  report->Note("latency when idle, p99", "ms", idle_p99);
  report->Note(
      "resident at capacity", "MiB", static_cast<double>(capacity.resident_bytes) / (1 << 20));
  report->Add({"other failures", "calls", 0, static_cast<double>(overload.num_other)});
  report->Add({"goodput under ten times the load, of capacity",
               "ratio",
               0.95,
               overload.ok_per_second / capacity.ok_per_second,
               false});
  report->Add({"99 % of refusals within", "ms", 10.0, overload.refusal_p99_ms});
  report->Add({"refusals that say when to come again", "ratio", 1.0, overload.hinted_share, false});
  report->Add({"resident memory, of that at capacity", "ratio", 1.10, memory});
  report->Add({"seconds to normal latency", "s", 5.0, recovery});
}

void RunFloods(Report* report) {
  // A device on which latency goes first: steps are short, so that nobody waits long for one.
  const std::vector<std::string> flags = {"--sim-base-us=5000",
                                          "--sim-per-token-us=20",
                                          "--sim-per-context-token-ns=0",
                                          "--max-num-batched-tokens=256",
                                          "--max-waiting-requests=1024",
                                          "--max-waiting-tokens=1000000",
                                          "--max-steps-in-flight=1"};
  const double idle = Percentile(ProbeMs(*Start(flags), kShortPromptTokens, 1), 0.99);
  report->Note("short request's first token when idle, p99", "ms", idle);
  for (const Flood& flood : kFloods) {
    std::vector<std::string> with_cache = flags;
    if (flood.num_cached_tokens > 0)
      with_cache.push_back(
          absl::StrCat("--kv-cache-memory=", flood.num_cached_tokens * kSimTokenBytes));
    const std::vector<double> ms = ProbeBesideFlood(*Start(std::move(with_cache)), flood);
    std::string name = absl::StrFormat("beside %d prompts of %d tokens and %d out",
                                       flood.depth,
                                       kLongPromptTokens,
                                       flood.num_output_tokens);
    if (flood.num_cached_tokens > 0)
      absl::StrAppend(&name, " in a cache of ", flood.num_cached_tokens);
    report->Note(name + ", p50", "ms", Percentile(ms, 0.5));
    report->Add({name + ", p99 of idle", "ratio", 3.0, Percentile(ms, 0.99) / idle});
  }
}

// Two tenants of equal weight, one of which always has ten times as many requests there.
void RunTenants(absl::Duration time, Report* report) {
  const std::string keys = absl::StrCat("/tmp/overload-bench-", getpid());
  std::ofstream(keys) << "loud tenant=loud\nquiet tenant=quiet\n";
  std::vector<std::string> flags = LoadedDevice();
  flags.insert(flags.end(), {"--max-waiting-requests=1024", "--api-key-file=" + keys});
  const auto daemon = Start(std::move(flags), "loud");
  Calls loud(*daemon), quiet(*daemon);
  const absl::Time begin = absl::Now() + absl::Seconds(3), end = begin + time;
  while (absl::Now() < end) {
    while (loud.num_open() < 400) loud.Start(kPromptTokens, kOutputTokens, "loud");
    while (quiet.num_open() < 40) quiet.Start(kPromptTokens, kOutputTokens, "quiet");
    absl::SleepFor(absl::Milliseconds(1));
  }
  const double by_loud = Describe(loud.TakeAnswers(), begin, end).ok_per_second;
  const double by_quiet = Describe(quiet.TakeAnswers(), begin, end).ok_per_second;
  loud.WaitForAll();
  quiet.WaitForAll();
  unlink(keys.c_str());
  report->Note("of the tenant with ten times the load", "requests/s", by_loud);
  report->Note("of the other", "requests/s", by_quiet);
  report->Add({"what the one gets of what the other gets, off 1",
               "ratio",
               0.05,
               std::abs(by_loud / std::max(by_quiet, 1e-9) - 1.0)});
}

int Run(double seconds, const char* json_path) {
  Report report(absl::StrFormat("overload_bench %g", seconds));
  RunFloods(&report);
  RunTenants(absl::Seconds(15), &report);
  if (seconds > 0) RunOverload(absl::Seconds(seconds), &report);
  return report.Write(json_path) && report.reached() ? 0 : 1;
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) {
  return pagoda::bench::Run(argc > 1 ? std::atof(argv[1]) : 20.0, argc > 2 ? argv[2] : nullptr);
}
