// Ten times the load that a daemon can carry, on the simulated device: what it still does, how it
// refuses the rest, what memory it takes and how soon it is back; then short requests beside a
// flood of long prompts.
//
// usage: overload_bench [SECONDS] [JSON-FILE]

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
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
// Of the flood: as many as the scheduler looks at in a step, and no more; behind a longer queue of
// its own tenant a short prompt waits for its turn among the first.
constexpr int kFloodDepth = 24;
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

  void Start(int num_prompt_tokens, int num_output_tokens) {
    auto* const call = new Call{.request = NewRequest(num_prompt_tokens, num_output_tokens)};
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

std::unique_ptr<e2e::TestDaemon> Start(std::vector<std::string> flags) {
  flags.insert(flags.begin(),
               {"--device=sim", "--no-enable-prefix-caching", "--log-level=warning"});
  auto started = e2e::TestDaemon::Start({.flags = std::move(flags)});
  if (started.ok()) return *std::move(started);
  std::fprintf(stderr, "%s\n", started.status().ToString().c_str());
  std::exit(1);
}

// Milliseconds to the only token of short requests.
std::vector<double> ProbeBesideFlood(const e2e::TestDaemon& daemon) {
  Calls flood(daemon);
  std::atomic<bool> stops{false};
  std::thread keeper([&] {
    while (!stops) {
      while (flood.num_open() < kFloodDepth) flood.Start(kLongPromptTokens, 1);
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

int Run(absl::Duration time, const char* json_path) {
  auto daemon = Start({"--sim-base-us=5000",
                       "--sim-per-token-us=50",
                       "--sim-per-context-token-ns=0",
                       "--max-num-seqs=32",
                       "--max-num-batched-tokens=1024",
                       "--max-waiting-requests=64"});
  const double idle_p99 = Percentile(ProbeMs(*daemon, kPromptTokens, kOutputTokens), 0.99);
  const Window capacity = MeasureCapacity(*daemon, time);
  const Window overload = MeasureOverload(*daemon, kOverload * capacity.ok_per_second, time);
  const double recovery = MeasureRecovery(*daemon, 1.5 * idle_p99);
  daemon.reset();

  // A device on which latency goes first: steps are short, so that nobody waits long for one.
  daemon = Start({"--sim-base-us=5000",
                  "--sim-per-token-us=20",
                  "--sim-per-context-token-ns=0",
                  "--max-num-batched-tokens=256",
                  "--max-steps-in-flight=1"});
  const double idle_ttft = Percentile(ProbeMs(*daemon, kShortPromptTokens, 1), 0.99);
  const double flood_ttft = Percentile(ProbeBesideFlood(*daemon), 0.99);
  daemon.reset();

  const double memory = static_cast<double>(overload.resident_bytes) /
                        static_cast<double>(std::max<uint64_t>(capacity.resident_bytes, 1));
  bool reached = Print({"goodput under ten times the load, of capacity",
                        "ratio",
                        0.95,
                        overload.ok_per_second / capacity.ok_per_second,
                        false});
  reached &= Print({"99 % of refusals within", "ms", 10.0, overload.refusal_p99_ms});
  reached &=
      Print({"refusals that say when to come again", "ratio", 1.0, overload.hinted_share, false});
  reached &= Print({"resident memory, of that at capacity", "ratio", 1.10, memory});
  reached &= Print({"seconds to normal latency", "s", 5.0, recovery});
  reached &= Print(
      {"99 % of short requests beside a flood, of idle", "ratio", 3.0, flood_ttft / idle_ttft});
  const std::string json = absl::StrFormat(
      "{\n"
      "  \"seconds\": %.0f,\n"
      "  \"capacity_per_second\": %.1f,\n"
      "  \"goodput_per_second\": %.1f,\n"
      "  \"refused_per_second\": %.1f,\n"
      "  \"refusal_p99_ms\": %.2f,\n"
      "  \"hinted_share\": %.4f,\n"
      "  \"other_failures\": %d,\n"
      "  \"resident_mib_at_capacity\": %.1f,\n"
      "  \"resident_mib_overloaded\": %.1f,\n"
      "  \"idle_latency_p99_ms\": %.1f,\n"
      "  \"recovery_seconds\": %.2f,\n"
      "  \"short_ttft_p99_ms_idle\": %.2f,\n"
      "  \"short_ttft_p99_ms_beside_flood\": %.2f\n"
      "}\n",
      absl::ToDoubleSeconds(time),
      capacity.ok_per_second,
      overload.ok_per_second,
      overload.refused_per_second,
      overload.refusal_p99_ms,
      overload.hinted_share,
      overload.num_other,
      static_cast<double>(capacity.resident_bytes) / (1 << 20),
      static_cast<double>(overload.resident_bytes) / (1 << 20),
      idle_p99,
      recovery,
      idle_ttft,
      flood_ttft);
  std::fputs(json.c_str(), stdout);
  if (json_path != nullptr) {
    std::FILE* const file = std::fopen(json_path, "w");
    if (file == nullptr || std::fputs(json.c_str(), file) < 0) return 1;
    std::fclose(file);
  }
  return reached ? 0 : 1;
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 20.0;
  return pagoda::bench::Run(absl::Seconds(seconds), argc > 2 ? argv[2] : nullptr);
}
