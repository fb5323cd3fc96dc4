// Cost on the engine thread of one decode step: schedule, plan, apply, detokenise, deliver. The
// workers answer at once and their time is taken off. Prints floor (what is asked for), figure and
// ratio.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>
#include <time.h>
#include <vector>

#include "engine/engine.h"
#include "tests/fakes/fake_tokenizer.h"

namespace pagoda::engine {
namespace {

constexpr int kNumWarmupSteps = 200;
constexpr int kNumStepsPerSample = 100;
constexpr int kNumSamples = 9;
constexpr int32_t kVocabSize = 32000;
constexpr int32_t kBlockSize = 16;

// Processor time of the engine thread: it never sleeps here, and neighbours on the machine do not
// count.
int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * int64_t{1000000000} + now.tv_nsec;
}

class Sink : public OutputSink {
 public:
  void Deliver(std::vector<OutputDelta> deltas) override { num_deltas += deltas.size(); }
  uint64_t num_deltas = 0;
};

// Answers every step at once, and takes the time of each hundred steps without its own.
class AnsweringPipe : public parallel::StepPipe {
 public:
  explicit AnsweringPipe(int32_t num_sequences) : num_sequences_(num_sequences) {
    // As in text, the token of rank r comes about 1/r as often as the first.
    std::mt19937 random(1);
    std::uniform_real_distribution<double> log_rank(0.0, std::log(kVocabSize));
    for (uint32_t& token : tokens_) token = static_cast<uint32_t>(std::exp(log_rank(random))) - 1;
  }

  absl::Status Submit(const internal::v1::StepPlan& plan) override {
    const int64_t begin_ns = NowNs();
    internal::v1::StepResult& result = in_flight_.emplace_back();
    result.set_step_id(plan.step_id());
    for (int i = 0; i < plan.row_slots_size(); ++i) {
      if (plan.row_samples(i) == 0) continue;
      result.add_sampled_slots(plan.row_slots(i));
      result.add_token_ids(tokens_[next_token_++ % tokens_.size()]);
    }
    const bool is_full = plan.row_slots_size() == num_sequences_ && plan.new_sequences_size() == 0;
    if (is_full) CountStep(begin_ns);
    own_ns_ += NowNs() - begin_ns;
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Poll(internal::v1::StepResult* result) override {
    if (in_flight_.empty()) return false;
    const int64_t begin_ns = NowNs();
    result->Swap(&in_flight_.front());
    in_flight_.pop_front();
    own_ns_ += NowNs() - begin_ns;
    return true;
  }

  void Wait(int, int64_t) override {}
  parallel::WorkerFailure failure() const override { return {}; }
  void Restart(int64_t) override {}
  bool is_ready() const override { return true; }
  int64_t late_at_ns() const override { return INT64_MAX; }

  Engine* engine = nullptr;
  std::vector<double> sample_us;

 private:
  void CountStep(int64_t now_ns) {
    ++num_full_steps_;
    if (num_full_steps_ < kNumWarmupSteps || num_full_steps_ % kNumStepsPerSample != 0) return;
    if (num_full_steps_ > kNumWarmupSteps) {
      const int64_t engine_ns = now_ns - sample_begin_ns_ - own_ns_;
      sample_us.push_back(static_cast<double>(engine_ns) * 1e-3 / kNumStepsPerSample);
    }
    if (sample_us.size() == kNumSamples) engine->Stop(absl::UnavailableError("done"));
    own_ns_ = 0;
    sample_begin_ns_ = now_ns;
  }

  const int32_t num_sequences_;
  std::vector<uint32_t> tokens_ = std::vector<uint32_t>(100003);
  size_t next_token_ = 0;
  std::deque<internal::v1::StepResult> in_flight_;
  int num_full_steps_ = 0;
  int64_t sample_begin_ns_ = 0;
  int64_t own_ns_ = 0;
};

// Median of the samples, in microseconds.
double StepMicroseconds(int32_t num_sequences, int32_t num_context_tokens) {
  std::vector<std::string> tokens;
  for (int32_t i = 0; i < kVocabSize; ++i) tokens.push_back(" w" + std::to_string(i % 1000));
  const FakeTokenizer tokenizer(tokens);
  AnsweringPipe pipe(num_sequences);
  Sink sink;
  EngineMetrics metrics;
  EngineOptions options = {.max_model_len = num_context_tokens + 2000, .vocab_size = kVocabSize};
  options.config.set_max_num_seqs(num_sequences);
  options.config.set_max_num_batched_tokens(1 << 24);
  options.config.set_block_size(kBlockSize);
  options.config.set_prefix_caching(true);
  options.config.set_max_waiting_requests(1 << 20);
  options.config.set_max_waiting_tokens(uint64_t{1} << 40);
  options.config.set_max_steps_in_flight(2);
  options.num_kv_blocks = num_sequences * (options.max_model_len / kBlockSize + 2);
  options.pipe = &pipe;
  options.sink = &sink;
  options.metrics = &metrics;
  options.tokenizer = &tokenizer;
  Engine engine(options);
  pipe.engine = &engine;
  for (int32_t i = 0; i < num_sequences; ++i) {
    Request request;
    request.key = RequestKey(i + 1);
    request.prompt.assign(num_context_tokens, i % kVocabSize);
    request.stop.stop_strings = {"never said", "nor this"};
    request.stop.eos_token_ids = {kVocabSize};
    request.arrival_ns = Clock::Monotonic().NowNs();
    if (!engine.Submit(std::move(request)).ok()) return 0.0;
  }
  if (!engine.Run().ok()) return 0.0;
  std::sort(pipe.sample_us.begin(), pipe.sample_us.end());
  return pipe.sample_us[pipe.sample_us.size() / 2];
}

void Report(const char* name, double floor, double figure, const char* unit) {
  std::printf("%-44s floor %7.1f %-2s  figure %7.1f %-2s  ratio %.2f\n",
              name,
              floor,
              unit,
              figure,
              unit,
              figure / floor);
}

// Machines drift, and neighbours only add: the cases alternate, and the best round of each counts.
void Main() {
  constexpr int kNumRounds = 5;
  double small = 1e9, large = 1e9, deep = 1e9;
  for (int i = 0; i < kNumRounds; ++i) {
    small = std::min(small, StepMicroseconds(256, 1000));
    large = std::min(large, StepMicroseconds(1024, 1000));
    deep = std::min(deep, StepMicroseconds(256, 100000));
  }
  Report("decode step, 256 sequences, 1k context", 50.0, small, "us");
  Report("decode step, 1,024 sequences, 1k context", 200.0, large, "us");
  Report("decode step, 256 sequences, 100k context", 50.0, deep, "us");
  Report("100k context to 1k context, percent", 120.0, 100.0 * deep / small, "%");
}

}  // namespace
}  // namespace pagoda::engine

// engine_step_bench [SEQUENCES CONTEXT_TOKENS]: that case alone.
int main(int argc, char** argv) {
  if (argc != 3) {
    pagoda::engine::Main();
    return 0;
  }
  const double us = pagoda::engine::StepMicroseconds(std::atoi(argv[1]), std::atoi(argv[2]));
  std::printf("decode step, %s sequences, %s context tokens: %.1f us\n", argv[1], argv[2], us);
}
