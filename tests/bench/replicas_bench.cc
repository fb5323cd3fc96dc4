// What two cores give: tokens a second of one daemon whose worker has one thread, of two such
// daemons (as fast as the machine allows), and of one with two replicas. All take turns, so that
// what else the machine does meets all.
//
// usage: replicas_bench [MODEL_DIR] [ROUNDS] [SECONDS]   a directory without weights gets random
// ones

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/bench/daemon_probe.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::bench {
namespace {

// Streams of each copy of the model.
constexpr int kStreams = 8;
constexpr uint32_t kPromptTokens = 40, kOutputTokens = 60;

// No two begin alike.
v1::GenerateRequest UnlikeRequest(int number) {
  std::vector<uint32_t> prompt;
  for (uint32_t i = 0; i < kPromptTokens; ++i)
    prompt.push_back(10 + (static_cast<uint32_t>(number) * 7919 + i * 104'729) % 1500);
  v1::GenerateRequest request = e2e::IdsRequest(prompt, kOutputTokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

// Daemons that are measured together.
class Contender {
 public:
  Contender(std::string name, int num_copies) : name_(std::move(name)), num_copies_(num_copies) {}

  bool Start(const std::string& model_dir, size_t num_daemons, std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--threads=1", "--max-model-len=256", "--kv-cache-memory=64MiB"});
    bool has_weights = false;
    for (const auto& entry : std::filesystem::directory_iterator(model_dir))
      has_weights |= entry.path().extension() == ".safetensors";
    if (!has_weights) flags.push_back("--load-format=dummy");
    for (size_t i = 0; i < num_daemons; ++i) {
      auto daemon = e2e::TestDaemon::Start({.model_dir = model_dir, .flags = flags});
      if (!daemon.ok()) {
        std::fprintf(stderr, "%s: %s\n", name_.c_str(), daemon.status().ToString().c_str());
        return false;
      }
      daemons_.push_back(*std::move(daemon));
    }
    return true;
  }

  // Tokens a second under a closed loop; remembered.
  void Measure(absl::Duration duration) {
    std::atomic<bool> is_over{false};
    std::vector<std::thread> clients;
    for (int client = 0; client < kStreams * num_copies_; ++client) {
      e2e::TestDaemon* const daemon = daemons_[static_cast<size_t>(client) % daemons_.size()].get();
      clients.emplace_back([this, daemon, &is_over] {
        const auto stub = daemon->NewStub();
        while (!is_over.load()) {
          const e2e::CallResult result = e2e::Generate(*stub, UnlikeRequest(next_++));
          if (result.status.ok()) continue;
          std::fprintf(stderr, "a call failed: %s\n", result.status.error_message().c_str());
          std::exit(1);
        }
      });
    }
    absl::SleepFor(duration / 5);
    const double before = NumTokens();
    const absl::Time begin = absl::Now();
    absl::SleepFor(duration);
    rates_.push_back((NumTokens() - before) / absl::ToDoubleSeconds(absl::Now() - begin));
    is_over.store(true);
    for (std::thread& client : clients) client.join();
  }

  double MedianRate() const {
    std::vector<double> sorted = rates_;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  void PrintRates() const {
    std::printf("%-24s", name_.c_str());
    for (const double rate : rates_) std::printf(" %8.0f", rate);
    std::printf("  median %.0f tokens/s\n", MedianRate());
  }

 private:
  double NumTokens() const {
    double sum = 0;
    for (const auto& daemon : daemons_) sum += *daemon->Metric("pagoda_generation_tokens_total");
    return sum;
  }

  const std::string name_;
  const int num_copies_;
  std::vector<std::unique_ptr<e2e::TestDaemon>> daemons_;
  std::atomic<int> next_{0};
  std::vector<double> rates_;
};

int Run(const std::string& model_dir, int rounds, absl::Duration duration) {
  Contender one("one daemon", 1), two("two daemons", 2), replicas("two replicas", 2);
  const bool have_started = one.Start(model_dir, 1, {}) && two.Start(model_dir, 2, {}) &&
                            replicas.Start(model_dir, 1, {"--replicas=2"});
  if (!have_started) return 1;
  for (int round = 0; round < rounds; ++round) {
    for (Contender* contender : {&one, &two, &replicas}) contender->Measure(duration);
  }
  for (const Contender* contender : {&one, &two, &replicas}) contender->PrintRates();
  std::printf("speed-up of two daemons %.2f, of two replicas %.2f\n",
              two.MedianRate() / one.MedianRate(),
              replicas.MedianRate() / one.MedianRate());
  const bool reached = Print({"speed-up of two replicas by that of two daemons",
                              "ratio",
                              0.9,
                              replicas.MedianRate() / two.MedianRate(),
                              false});
  return reached ? 0 : 1;
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) {
  const std::string model_dir = argc > 1 ? argv[1] : pagoda::e2e::DefaultModelDir();
  return pagoda::bench::Run(model_dir,
                            argc > 2 ? std::atoi(argv[2]) : 5,
                            absl::Milliseconds(argc > 3 ? 1000 * std::atof(argv[3]) : 1500));
}
