// Speculation by n-gram lookup with the default model: tokens a step and tokens a second on a text
// that repeats itself, and tokens a second on texts that do not, each against the same requests
// without drafts. Both kinds of request take turns, so that what else the machine does meets both.
//
// usage: speculation_bench [ROUNDS]   $PAGODA_DEVICE and $PAGODA_BINARY as in end-to-end tests

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/bench/daemon_probe.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::bench {
namespace {

constexpr uint32_t kDrafts = 8;
constexpr uint32_t kNumTokens = 400;
constexpr const char* kRefrain =
    "The cat sat on the mat. The dog sat on the log. The bird sat on the word. ";

v1::GenerateRequest Repetitive() {
  v1::GenerateRequest request =
      e2e::TextRequest(absl::StrCat(kRefrain, kRefrain, kRefrain, "The cat sat"), kNumTokens);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0.0f);
  return request;
}

v1::GenerateRequest Story(uint64_t seed) {
  v1::GenerateRequest request = e2e::TextRequest("Once upon a time", kNumTokens);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(1.0f);
  request.mutable_sampling()->set_seed(seed);
  return request;
}

struct Measured {
  double seconds = 0.0;
  double tokens_per_step = 0.0;
  std::vector<uint32_t> tokens;
};

class Bench {
 public:
  explicit Bench(e2e::TestDaemon* daemon) : daemon_(daemon) {}

  Measured Run(v1::GenerateRequest request, bool drafted) {
    if (drafted)
      request.mutable_sampling()->mutable_ngram_speculation()->set_max_draft_tokens(kDrafts);
    const double steps_before = *daemon_->Metric("pagoda_step_tokens_count");
    const absl::Time start = absl::Now();
    const e2e::CallResult result = e2e::StreamGenerate(daemon_->stub(), request);
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    if (!result.status.ok()) {
      std::fprintf(stderr, "a call failed: %s\n", result.status.error_message().c_str());
      std::exit(1);
    }
    const double steps = *daemon_->Metric("pagoda_step_tokens_count") - steps_before;
    return {.seconds = seconds,
            .tokens_per_step = static_cast<double>(result.first().token_ids.size()) / steps,
            .tokens = result.first().token_ids};
  }

  // Plain seconds by drafted seconds, of the best of `rounds` each, summed over the requests.
  double SpeedUp(const std::vector<v1::GenerateRequest>& requests, int rounds) {
    double plain_seconds = 0.0, drafted_seconds = 0.0;
    for (const v1::GenerateRequest& request : requests) {
      double best[2] = {1e9, 1e9};
      for (int round = 0; round < rounds; ++round) {
        std::vector<uint32_t> tokens;
        for (const bool drafted : {false, true}) {
          const Measured measured = Run(request, drafted);
          best[drafted] = std::min(best[drafted], measured.seconds);
          tokens_are_equal_ &= !drafted || measured.tokens == tokens;
          tokens = measured.tokens;
        }
      }
      plain_seconds += best[0];
      drafted_seconds += best[1];
    }
    std::printf("%.1f tokens/s, drafted %.1f\n",
                static_cast<double>(requests.size()) * kNumTokens / plain_seconds,
                static_cast<double>(requests.size()) * kNumTokens / drafted_seconds);
    return plain_seconds / drafted_seconds;
  }
  bool tokens_are_equal() const { return tokens_are_equal_; }

 private:
  e2e::TestDaemon* const daemon_;
  bool tokens_are_equal_ = true;
};

int Main(int rounds) {
  auto daemon = e2e::TestDaemon::Start({.flags = {"--dtype=float32"}});
  if (!daemon.ok()) {
    std::fprintf(stderr, "%s\n", daemon.status().ToString().c_str());
    return 1;
  }
  Bench bench(daemon->get());
  bench.Run(Repetitive(), false);  // warm
  const double tokens_per_step = bench.Run(Repetitive(), true).tokens_per_step /
                                 bench.Run(Repetitive(), false).tokens_per_step;
  const double repetitive = bench.SpeedUp({Repetitive()}, rounds);
  std::vector<v1::GenerateRequest> stories;
  for (uint64_t seed = 1; seed <= 4; ++seed) stories.push_back(Story(seed));
  const double story = bench.SpeedUp(stories, rounds);
  const auto print = [](const char* name, double goal, double value) {
    return Print(
        {.name = name, .unit = "x", .goal = goal, .value = value, .lower_is_better = false});
  };
  bool reached = print("tokens a step on a repetitive text", 1.5, tokens_per_step);
  reached &= print("output tokens/s on a repetitive text", 1.3, repetitive);
  reached &= print("output tokens/s on texts without repetition", 0.97, story);
  std::printf("%s\n", bench.tokens_are_equal() ? "the same tokens" : "tokens DIFFER");
  return reached && bench.tokens_are_equal() ? 0 : 1;
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) { return pagoda::bench::Main(argc > 1 ? std::atoi(argv[1]) : 5); }
