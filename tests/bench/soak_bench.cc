// A long while at 80 % of what the daemon can do, with 5 % of clients broken: what drifts. Capacity
// is measured first, by as many clients as run at once; then requests come at random moments at 0.8
// of it. Goals: resident memory within 1 % after the warm-up, no descriptor and no block left, and
// counters that are those of the clients.
//
// usage: soak_bench [MINUTES [STEP_US [JSON-FILE]]]; longer steps make it take less of the machine

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "tests/bench/daemon_probe.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::bench {
namespace {

constexpr int kMaxRunning = 64;
constexpr double kLoad = 0.8;
constexpr double kBrokenShare = 0.05;
constexpr absl::Duration kCapacityTime = absl::Seconds(10);
constexpr absl::Duration kSamplePeriod = absl::Seconds(1);
constexpr double kWarmUpShare = 0.2, kMeanShare = 0.1;  // of the time

enum class Manner { kGood, kCancels, kHasDeadline, kIsInvalid, kIsTooLong };

struct Counts {
  std::atomic<int64_t> sent{0}, ended{0}, ok{0}, refused{0}, cancelled{0}, late{0}, wrong{0},
      tokens{0};
};

// One call, which deletes itself at its end.
class SoakCall final : public grpc::ClientReadReactor<v1::StreamGenerateResponse> {
 public:
  static void Start(v1::InferenceService::Stub& stub,
                    Manner manner,
                    std::mt19937_64& random,
                    Counts* counts,
                    std::function<void()> on_end = nullptr) {
    auto* call = new SoakCall(manner, random, counts, std::move(on_end));
    counts->sent.fetch_add(1);
    stub.async()->StreamGenerate(&call->context_, &call->request_, call);
    call->StartRead(&call->message_);
    call->StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    ++num_reads_;
    counts_->tokens.fetch_add(message_.delta().token_ids_size());
    if (manner_ == Manner::kCancels && num_reads_ == 2) context_.TryCancel();
    StartRead(&message_);
  }

  void OnDone(const grpc::Status& status) override {
    const grpc::StatusCode code = status.error_code();
    if (code == grpc::StatusCode::OK) counts_->ok.fetch_add(1);
    if (code == grpc::StatusCode::INVALID_ARGUMENT) counts_->refused.fetch_add(1);
    if (code == grpc::StatusCode::CANCELLED) counts_->cancelled.fetch_add(1);
    if (code == grpc::StatusCode::DEADLINE_EXCEEDED) counts_->late.fetch_add(1);
    if (!IsExpected(code)) {
      counts_->wrong.fetch_add(1);
      std::fprintf(stderr,
                   "manner %d: %d %s\n",
                   static_cast<int>(manner_),
                   code,
                   status.error_message().c_str());
    }
    const std::function<void()> on_end = std::move(on_end_);
    Counts* const counts = counts_;
    delete this;
    if (on_end) on_end();
    counts->ended.fetch_add(1);
  }

 private:
  SoakCall(Manner manner, std::mt19937_64& random, Counts* counts, std::function<void()> on_end)
      : manner_(manner), counts_(counts), on_end_(std::move(on_end)) {
    const size_t prompt_size = manner == Manner::kIsTooLong ? 5'000 : 1 + random() % 200;
    std::vector<uint32_t> prompt(prompt_size);
    for (uint32_t& id : prompt) id = static_cast<uint32_t>(3 + random() % 2000);
    // What is to be cut off is so long that it never ends by itself: both sides count the same.
    const bool is_cut_off = manner == Manner::kCancels || manner == Manner::kHasDeadline;
    const uint32_t max_tokens = is_cut_off ? 200 : 1 + static_cast<uint32_t>(random() % 64);
    v1::GenerateRequest request = e2e::IdsRequest(prompt, max_tokens);
    if (is_cut_off) request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_sampling()->set_seed(random());
    if (manner == Manner::kIsInvalid) request.mutable_sampling()->set_temperature(-1);
    request_ = e2e::AsStream(request);
    if (manner == Manner::kHasDeadline) {
      context_.set_deadline(std::chrono::system_clock::now() +
                            std::chrono::milliseconds(1 + random() % 50));
    }
  }

  bool IsExpected(grpc::StatusCode code) const {
    switch (manner_) {
      case Manner::kGood:
        return code == grpc::StatusCode::OK;
      case Manner::kCancels:
        return code == grpc::StatusCode::CANCELLED;
      case Manner::kHasDeadline:
        // Or refused at once, where it would be over before its turn came.
        return code == grpc::StatusCode::DEADLINE_EXCEEDED ||
               code == grpc::StatusCode::RESOURCE_EXHAUSTED;
      case Manner::kIsInvalid:
      case Manner::kIsTooLong:
        return code == grpc::StatusCode::INVALID_ARGUMENT;
    }
    return false;
  }

  const Manner manner_;
  Counts* const counts_;
  std::function<void()> on_end_;
  grpc::ClientContext context_;
  v1::StreamGenerateRequest request_;
  v1::StreamGenerateResponse message_;
  int num_reads_ = 0;
};

Manner DrawManner(std::mt19937_64& random) {
  if (std::uniform_real_distribution<double>(0, 1)(random) >= kBrokenShare) return Manner::kGood;
  return static_cast<Manner>(1 + random() % 4);
}

void AwaitAll(const Counts& counts) {
  while (counts.ended.load() < counts.sent.load()) absl::SleepFor(absl::Milliseconds(10));
}

// Requests a second of as many clients as run at once, each with one call after another.
double MeasureCapacity(v1::InferenceService::Stub& stub, Counts* counts) {
  std::atomic<bool> is_over{false};
  absl::Mutex mutex;
  std::mt19937_64 random(1);
  std::function<void()> next = [&] {
    if (is_over.load()) return;
    absl::MutexLock lock(&mutex);
    SoakCall::Start(stub, Manner::kGood, random, counts, next);
  };
  const int64_t ok_before = counts->ok.load();
  const absl::Time begin = absl::Now();
  for (int i = 0; i < kMaxRunning; ++i) next();
  absl::SleepFor(kCapacityTime);
  const double rate = static_cast<double>(counts->ok.load() - ok_before) /
                      absl::ToDoubleSeconds(absl::Now() - begin);
  is_over.store(true);
  AwaitAll(*counts);
  return rate;
}

double NumDescriptors(pid_t pid) {
  std::error_code ignored;
  const auto entries =
      std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), ignored);
  return static_cast<double>(std::distance(begin(entries), end(entries)));
}

double Mean(const std::vector<double>& values, double from_share) {
  const size_t size = std::max<size_t>(1, static_cast<size_t>(kMeanShare * values.size()));
  const size_t first =
      std::min(values.size() - size, static_cast<size_t>(from_share * values.size()));
  double sum = 0;
  for (size_t i = first; i < first + size; ++i) sum += values[i];
  return sum / static_cast<double>(size);
}

// 0: absent, as counters are of what has never been.
double MetricOf(const e2e::TestDaemon& daemon, const std::string& series) {
  return daemon.Metric(series).value_or(0);
}

double FinishedOf(const e2e::TestDaemon& daemon, const char* outcome) {
  return MetricOf(
      daemon,
      absl::StrCat("pagoda_requests_finished_total{model=\"fable-7m\",api=\"grpc\",outcome=\"",
                   outcome,
                   "\""));
}

double RejectedOf(const e2e::TestDaemon& daemon, const char* reason) {
  return MetricOf(daemon, absl::StrCat("pagoda_requests_rejected_total{reason=\"", reason, "\"}"));
}

int Run(double minutes, int step_us, const char* json_path) {
  auto started = e2e::TestDaemon::Start({.flags = {"--device=sim",
                                                   absl::StrCat("--sim-base-us=", step_us),
                                                   "--sim-per-token-us=5",
                                                   absl::StrCat("--max-num-seqs=", kMaxRunning),
                                                   "--max-waiting-requests=4096",
                                                   "--log-level=warning"}});
  if (!started.ok()) {
    std::fprintf(stderr, "%s\n", started.status().ToString().c_str());
    return 1;
  }
  e2e::TestDaemon& daemon = **started;
  std::vector<std::unique_ptr<v1::InferenceService::Stub>> stubs;
  for (int i = 0; i < 4; ++i) stubs.push_back(daemon.NewStub());
  Counts counts;
  const double capacity = MeasureCapacity(*stubs[0], &counts);
  for (auto& stub : stubs) e2e::StreamGenerate(*stub, e2e::TextRequest("warm", 2));
  const int64_t num_extra = static_cast<int64_t>(stubs.size());
  const double descriptors_before = NumDescriptors(daemon.pid());
  std::printf("capacity %.0f requests/s; %.1f minutes at %.0f requests/s\n",
              capacity,
              minutes,
              kLoad * capacity);

  std::mt19937_64 random(2);
  std::exponential_distribution<double> pause(kLoad * capacity);
  std::vector<double> resident;
  const absl::Time begin = absl::Now(), end = begin + absl::Minutes(1) * minutes;
  const double cpu_begin = CpuSeconds(daemon.pid());
  absl::Time next = begin, next_sample = begin;
  while (next < end) {
    absl::SleepFor(next - absl::Now());
    SoakCall::Start(*stubs[random() % stubs.size()], DrawManner(random), random, &counts);
    if (next >= next_sample) {
      resident.push_back(static_cast<double>(ResidentBytes(daemon.pid())));
      next_sample += kSamplePeriod;
      if (resident.size() % 60 == 0) {
        std::printf("%zu min: %.2f MiB\n", resident.size() / 60, resident.back() / (1 << 20));
        std::fflush(stdout);
      }
    }
    next += absl::Seconds(pause(random));
  }
  const double cores =
      (CpuSeconds(daemon.pid()) - cpu_begin) / absl::ToDoubleSeconds(absl::Now() - begin);
  AwaitAll(counts);
  // What ended for its client may take the daemon a step more.
  e2e::TestDaemon::Eventually(absl::Seconds(10), [&] {
    return MetricOf(daemon, "pagoda_requests_running") == 0 &&
           MetricOf(daemon, "pagoda_grpc_streams") == 0;
  });

  const double early = Mean(resident, kWarmUpShare), late = Mean(resident, 1 - kMeanShare);
  double num_finished = 0;
  for (const char* outcome : {"stop", "length", "cancelled", "deadline", "rejected", "error"})
    num_finished += FinishedOf(daemon, outcome);
  const double finished_ok = FinishedOf(daemon, "length") + FinishedOf(daemon, "stop");
  const double rejected = RejectedOf(daemon, "invalid") + RejectedOf(daemon, "too_long");
  // A scrape's connection may be there a little longer.
  double descriptors = 0;
  e2e::TestDaemon::Eventually(absl::Seconds(5), [&] {
    descriptors = NumDescriptors(daemon.pid()) - descriptors_before;
    return descriptors <= 0;
  });

  Report report(absl::StrFormat("soak_bench %g %d", minutes, step_us));
  report.Note("requests", "", static_cast<double>(counts.sent.load()));
  report.Note("ended well", "", static_cast<double>(counts.ok.load()));
  report.Note("tokens read", "", static_cast<double>(counts.tokens.load()));
  report.Note("load", "requests/s", kLoad * capacity);
  report.Note("processor time of the daemon", "cores", cores);
  report.Note("resident after the warm-up", "MiB", early / (1 << 20));
  for (const char* reason : {"queue_full", "too_long", "invalid"})
    report.Note(absl::StrCat("refused by the daemon: ", reason), "", RejectedOf(daemon, reason));
  report.Note("refused as invalid, clients", "", static_cast<double>(counts.refused.load()));
  report.Add({"unexpected ends", "calls", 0, static_cast<double>(counts.wrong.load())});
  report.Add({"drift of resident memory", "%", 1.0, 100 * (late / early - 1)});
  report.Add({"descriptors more than before", "", 0, descriptors});
  report.Add(
      {"blocks in use", "", 0, MetricOf(daemon, "pagoda_kv_blocks{pool=\"0\",state=\"used\"}")});
  report.Add({"finished requests, daemon less clients",
              "",
              0,
              std::abs(finished_ok - static_cast<double>(counts.ok.load() + num_extra))});
  // A client whose time is over may be told before the daemon looks, or before it is reached.
  const double cut = FinishedOf(daemon, "cancelled") + FinishedOf(daemon, "deadline");
  const auto cancelled = static_cast<double>(counts.cancelled.load());
  const auto past_deadline = static_cast<double>(counts.late.load());
  report.Add({"requests cut short, daemon off clients",
              "",
              0,
              std::max({0.0, cancelled - cut, cut - cancelled - past_deadline})});
  report.Add({"refused requests, daemon less clients",
              "",
              0,
              std::abs(rejected - static_cast<double>(counts.refused.load()))});
  report.Add({"received requests less those that ended",
              "",
              0,
              std::abs(MetricOf(daemon, "pagoda_requests_received_total") - num_finished)});
  return report.Write(json_path) && report.reached() ? 0 : 1;
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) {
  return pagoda::bench::Run(argc > 1 ? std::atof(argv[1]) : 60,
                            argc > 2 ? std::atoi(argv[2]) : 2000,
                            argc > 3 ? argv[3] : nullptr);
}
