// Random cancellations and deadlines in every phase of requests: none of them computes anything
// afterwards, blocks are free within two steps, and nothing is left of them.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#ifndef PAGODA_SANITIZED
#include <malloc.h>
#endif

#include <gtest/gtest.h>

#include "kernels/base/log.h"
#include "tests/fakes/engine_harness.h"

namespace pagoda::engine {
namespace {

constexpr int64_t kStepNs = 1'000'000;
constexpr uint32_t kNumTokens = 100;
// The first tokens of a prompt are its key in digits.
constexpr int kNumDigits = 4;
constexpr uint64_t kMaxKeys = uint64_t{kNumTokens} * kNumTokens * kNumTokens * kNumTokens;
constexpr size_t kMaxLive = 60;
constexpr uint32_t kMaxRunning = 8;

EngineHarness::Options OptionsFor(OutputSink* sink) {
  EngineHarness::Options options = EngineHarness::DefaultOptions();
  options.sink = sink;
  options.vocab_size = kNumTokens;
  options.max_model_len = 64;
  options.num_kv_blocks = 64;
  options.checks_reads = false;
  options.config.set_max_num_seqs(kMaxRunning);
  options.config.set_max_num_batched_tokens(24);
  options.config.set_max_waiting_requests(200);
  options.config.set_max_worker_restarts(1'000'000'000);
  options.config.set_worker_restart_window_ms(1);
  return options;
}

class CancelRun : public OutputSink {
 public:
  CancelRun(uint64_t seed, uint64_t num_early) : random_(seed), num_early_(num_early) {
    harness_.pipe.on_wait = [this] { Act(); };
    harness_.pipe.on_plan = [this](const internal::v1::StepPlan& plan) { CheckPlan(plan); };
  }

  void Run();
  void Deliver(std::vector<OutputDelta> deltas) override;

 private:
  // What a request is to meet; several may.
  struct Live {
    bool is_cancelled = false;
    int64_t deadline_ns = INT64_MAX;
    int num_deltas_to_cancel = 0;  // 0: never
  };
  enum class Phase { kMixed, kSweep, kStorm, kEnd, kLast };

  int32_t Draw(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }
  bool OneIn(int32_t n) { return Draw(1, n) == 1; }
  void Violate(const std::string& what) {
    if (violation_.empty()) violation_ = what + ", wait " + std::to_string(wait_);
  }

  // On the engine's thread, while it waits for a step: 1 ms and one result a call.
  void Act();
  void ActMixed();
  Request NewRequest();
  // False: refused.
  bool Submit(Request request);
  void Cancel(uint64_t key);
  void CancelAll();
  void BeginStorm();
  void CheckNothingIsLeft(const char* after);
  void NoteHeap();
  void CheckPlan(const internal::v1::StepPlan& plan);

  std::mt19937_64 random_;
  const uint64_t num_early_;  // cancellations and deadlines to make
  EngineHarness harness_{OptionsFor(this)};
  Phase phase_ = Phase::kMixed;
  int64_t wait_ = 0, check_wait_ = 0;
  std::map<uint64_t, Live> live_;
  std::multimap<int64_t, uint64_t> cancels_;    // by wait
  std::map<uint32_t, uint64_t> keys_of_slots_;  // as plans say
  uint64_t num_made_ = 0, num_cancelled_ = 0, num_past_deadline_ = 0, num_to_the_end_ = 0;
  uint64_t num_sweeps_ = 0;
  size_t heap_bytes_ = 0;  // after a while
  std::string violation_;
};

Request CancelRun::NewRequest() {
  Request request = harness_.NewRequest(Prompt(kNumDigits + Draw(0, 30)), Draw(1, 20));
  uint64_t key = request.key.value() % kMaxKeys;
  for (int i = 0; i < kNumDigits; ++i, key /= kNumTokens)
    request.prompt[i] = static_cast<TokenId>(key % kNumTokens);
  if (OneIn(6)) request.n = Draw(2, 3);
  request.best_of = request.n;
  if (OneIn(12)) {
    request.best_of = Draw(2, 3);
    request.n = 1;
    request.sampling.beams = BeamParams{.width = request.best_of};
  }
  if (OneIn(3)) request.sampling.max_draft_tokens = Draw(1, 8);
  if (OneIn(3)) request.tenant.name = "other";
  return request;
}

bool CancelRun::Submit(Request request) {
  const uint64_t key = request.key.value();
  Live& live = live_[key];
  if (request.deadline_ns.has_value()) live.deadline_ns = *request.deadline_ns;
  const absl::Status status = harness_.Submit(std::move(request));
  if (status.ok()) return true;
  live_.erase(key);
  if (!absl::IsResourceExhausted(status)) Violate(status.ToString());
  return false;
}

void CancelRun::Cancel(uint64_t key) {
  ++num_made_;
  harness_.engine->Cancel(RequestKey(key));
  if (const auto it = live_.find(key); it != live_.end()) it->second.is_cancelled = true;
}

void CancelRun::CancelAll() {
  for (const auto& [key, live] : live_) Cancel(key);
  cancels_.clear();
  // Those in flight now and one more: after two results nothing is left.
  check_wait_ = wait_ + 2;
}

void CancelRun::BeginStorm() {
  const int32_t num_steps = Draw(1, 30);
  for (int32_t i = Draw(1, 40); i > 0; --i) {
    Request request = NewRequest();
    request.deadline_ns = harness_.clock.now_ns + num_steps * kStepNs;
    if (Submit(std::move(request))) ++num_made_;
  }
  check_wait_ = wait_ + num_steps + 2;
}

void CancelRun::ActMixed() {
  for (auto it = cancels_.begin(); it != cancels_.end() && it->first <= wait_;) {
    Cancel(it->second);
    it = cancels_.erase(it);
  }
  if (OneIn(3000)) {
    harness_.pipe.fault = absl::UnavailableError("lost");
    harness_.pipe.num_waits_to_restart = Draw(0, 8);
  }
  for (int32_t i = Draw(0, 3); i > 0 && live_.size() < kMaxLive; --i) {
    Request request = NewRequest();
    const uint64_t key = request.key.value();
    const int32_t kind = Draw(0, 9);
    const bool has_deadline = kind < 4;
    if (has_deadline) request.deadline_ns = harness_.clock.now_ns + Draw(0, 40) * kStepNs;
    if (!Submit(std::move(request))) continue;
    num_made_ += has_deadline ? 1 : 0;
    if (kind == 3 || kind == 4 || kind == 5) cancels_.emplace(wait_ + Draw(1, 40), key);
    if (kind == 6) Cancel(key);
    if (kind == 7 || kind == 8) live_[key].num_deltas_to_cancel = Draw(1, 12);
  }
}

void CancelRun::Act() {
  harness_.clock.now_ns += kStepNs;
  ++wait_;
  if (!violation_.empty() || !harness_.pipe.violation().empty())
    return harness_.engine->Stop(absl::AbortedError("failed"));
  switch (phase_) {
    case Phase::kMixed:
      ActMixed();
      if (num_made_ >= num_early_) phase_ = Phase::kEnd;
      if (phase_ != Phase::kEnd && !OneIn(200)) return;
      CancelAll();
      if (phase_ != Phase::kEnd) phase_ = Phase::kSweep;
      return;
    case Phase::kSweep:
      if (wait_ < check_wait_) return;
      CheckNothingIsLeft("cancellations");
      ++num_sweeps_;
      NoteHeap();
      BeginStorm();
      phase_ = Phase::kStorm;
      return;
    case Phase::kStorm:
      if (wait_ < check_wait_) return;
      CheckNothingIsLeft("deadlines");
      phase_ = Phase::kMixed;
      return;
    case Phase::kEnd:
      if (wait_ < check_wait_) return;
      CheckNothingIsLeft("the end");
      // Every slot is there: so many run at once.
      for (uint32_t i = 0; i < kMaxRunning; ++i)
        Submit(harness_.NewRequest(Prompt(kNumDigits), 20));
      check_wait_ = wait_ + 6;
      phase_ = Phase::kLast;
      return;
    case Phase::kLast:
      if (wait_ == check_wait_) {
        const double num_running = harness_.metrics.requests_running.value();
        if (num_running != kMaxRunning) Violate(std::to_string(num_running) + " run at the end");
      }
      if (live_.empty()) harness_.engine->Stop(absl::UnavailableError("over"));
      return;
  }
}

void CancelRun::CheckNothingIsLeft(const char* after) {
  const EngineMetrics& m = harness_.metrics;
  if (!live_.empty() || harness_.engine->num_live_requests() != 0)
    Violate(std::string("requests are live after ") + after);
  if (m.kv_blocks_used.value() != 0)
    Violate(std::to_string(m.kv_blocks_used.value()) + " blocks are used after " + after);
  if (m.requests_running.value() != 0 || m.requests_waiting.value() != 0)
    Violate(std::string("sequences are left after ") + after);
}

// Entries that are left in some map would take memory, more with each request.
void CancelRun::NoteHeap() {
#ifndef PAGODA_SANITIZED
  const size_t now = mallinfo2().uordblks;
  constexpr size_t kSlack = 256 << 10;
  if (num_made_ < num_early_ / 10) heap_bytes_ = std::max(heap_bytes_, now);
  if (heap_bytes_ > 0 && now > heap_bytes_ + kSlack)
    Violate(std::to_string(now - heap_bytes_) + " bytes more than at first");
#endif
}

void CancelRun::CheckPlan(const internal::v1::StepPlan& plan) {
  for (const auto& sequence : plan.new_sequences()) {
    uint64_t key = 0;
    for (int i = kNumDigits - 1; i >= 0; --i) key = key * kNumTokens + sequence.token_ids(i);
    keys_of_slots_[sequence.slot()] = key;
  }
  for (const uint32_t slot : plan.row_slots()) {
    const auto it = live_.find(keys_of_slots_[slot]);
    if (phase_ == Phase::kLast) continue;
    if (it == live_.end()) return Violate("a row of a request that has ended");
    if (it->second.is_cancelled) return Violate("a row of a cancelled request");
    if (it->second.deadline_ns <= harness_.clock.now_ns)
      return Violate("a row of a request whose deadline has passed");
  }
}

void CancelRun::Deliver(std::vector<OutputDelta> deltas) {
  for (const OutputDelta& delta : deltas) {
    const auto it = live_.find(delta.key.value());
    if (it == live_.end()) return Violate("a delta of nobody");
    Live& live = it->second;
    if (delta.finished.has_value()) {
      const FinishReason reason = delta.finished->reason;
      const bool is_right = reason == FinishReason::kCancelled ? live.is_cancelled
                            : reason == FinishReason::kDeadline
                                ? live.deadline_ns <= harness_.clock.now_ns
                                : reason != FinishReason::kError;
      if (!is_right) return Violate("a wrong end: " + delta.finished->status.ToString());
      num_cancelled_ += delta.last && reason == FinishReason::kCancelled ? 1 : 0;
      num_past_deadline_ += delta.last && reason == FinishReason::kDeadline ? 1 : 0;
      num_to_the_end_ += delta.last && delta.finished->status.ok() ? 1 : 0;
    }
    if (delta.last) {
      live_.erase(it);
    } else if (live.num_deltas_to_cancel > 0 && --live.num_deltas_to_cancel == 0) {
      Cancel(delta.key.value());
    }
  }
}

void CancelRun::Run() {
  const absl::Status status = harness_.engine->Run();
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(violation_, "");
  ASSERT_EQ(harness_.pipe.violation(), "");
  const MetricHistogram& to_free = harness_.metrics.cancel_to_free_seconds;
  uint64_t num_freed = 0, num_in_two_steps = 0;
  for (size_t i = 0; i < to_free.upper_bounds().size(); ++i) {
    num_freed += to_free.count(i);
    // 1 ms a step; the next bound is 2.5 ms.
    if (to_free.upper_bounds()[i] < 3e-3) num_in_two_steps += to_free.count(i);
  }
  num_freed += to_free.count(to_free.upper_bounds().size());
  std::printf(
      "%llu cancellations and deadlines (%llu requests ended as cancelled, %llu past their "
      "deadline, %llu by themselves) in %lld steps; %llu of %llu freed their blocks within "
      "two steps; %llu sweeps, %llu restarts\n",
      static_cast<unsigned long long>(num_made_),
      static_cast<unsigned long long>(num_cancelled_),
      static_cast<unsigned long long>(num_past_deadline_),
      static_cast<unsigned long long>(num_to_the_end_),
      static_cast<long long>(wait_),
      static_cast<unsigned long long>(num_in_two_steps),
      static_cast<unsigned long long>(num_freed),
      static_cast<unsigned long long>(num_sweeps_),
      static_cast<unsigned long long>(harness_.pipe.num_restarts()));
  EXPECT_EQ(num_in_two_steps, num_freed);
  // The run did reach what it is for.
  EXPECT_GT(num_cancelled_, num_early_ / 4);
  EXPECT_GT(num_past_deadline_, num_early_ / 10);
  EXPECT_GT(num_to_the_end_, num_early_ / 100);
  EXPECT_GT(num_sweeps_, num_early_ / 10'000);
}

TEST(CancelRandomTest, NothingIsLeftOfAMillionThatAreCutShort) {
  SetLogLevel("error");
#ifdef PAGODA_SANITIZED
  constexpr uint64_t kMany = 100'000;
#else
  constexpr uint64_t kMany = 1'000'000;
#endif
  CancelRun(1, std::getenv("PAGODA_QUICK_TESTS") == nullptr ? kMany : 20'000).Run();
}

}  // namespace
}  // namespace pagoda::engine
