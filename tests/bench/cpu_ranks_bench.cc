// Decode with ranks that share a model on the CPU, one thread each, beside what the same cores give
// to as many processes that share nothing: how much faster each is than one process alone. Three
// ways by turns, since machines drift. Goal: ranks reach 0.9 of the speed-up of the independent.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "engine/model/model_config.h"
#include "parallel/shm_group.h"
#include "parallel/unique_fd.h"
#include "tests/bench/model_loop.h"

namespace pagoda::bench {
namespace {

struct Options : ModelLoopOptions {
  int num_processes = 2;
  int passes = 5;
  int steps = 48;
  std::string json_path;
};

enum class Way { kOne, kIndependent, kRanks };
constexpr std::array kWays = {Way::kOne, Way::kIndependent, Way::kRanks};
constexpr const char* kWayNames[] = {"one process", "independent processes", "ranks"};

// Between the benchmark and a process of it. Both ends of the pipes are in both.
struct Pipes {
  int ready[2], go[2], rate[2];
};

void MakePipe(int* fds) {
  if (pipe(fds) == 0) return;
  std::perror("pipe");
  std::exit(1);
}

template <typename T>
T ReadFrom(int fd) {
  T value{};
  if (read(fd, &value, sizeof value) == sizeof value) return value;
  std::fprintf(stderr, "error: a process of the benchmark has ended\n");
  std::exit(1);
}

template <typename T>
void WriteTo(int fd, T value) {
  if (write(fd, &value, sizeof value) != sizeof value) std::exit(1);
}

// A process: loads, says so, and decodes when it is told to; tells its tokens a second.
[[noreturn]] void RunProcess(const Options& options,
                             const engine::ModelConfig& model,
                             const parallel::UniqueFd* memory,
                             const Pipes& pipes) {
  std::unique_ptr<parallel::ProcessGroup> group;
  if (memory != nullptr) {
    auto made = parallel::MakeShmGroup(*memory, options.rank, options.num_ranks);
    Require(made.status());
    group = *std::move(made);
  }
  ModelLoop loop(options, model, std::move(group));
  loop.StartDecode(options.batch);
  loop.DecodeStep();
  WriteTo(pipes.ready[1], 'r');
  ReadFrom<char>(pipes.go[0]);
  double seconds = 0;
  for (int i = 0; i < options.steps; ++i) seconds += loop.DecodeStep();
  WriteTo(pipes.rate[1], options.batch * options.steps / seconds);
  _exit(0);
}

// Tokens a second of all processes together; ranks make the same tokens.
double Measure(Options options, const engine::ModelConfig& model, Way way) {
  const int num = way == Way::kOne ? 1 : options.num_processes;
  parallel::UniqueFd memory;
  if (way == Way::kRanks) {
    options.num_ranks = num;
    auto made = parallel::MakeShmGroupMemory(num);
    Require(made.status());
    memory = *std::move(made);
  }
  std::vector<Pipes> all(static_cast<size_t>(num));
  for (int i = 0; i < num; ++i) {
    Pipes& pipes = all[static_cast<size_t>(i)];
    MakePipe(pipes.ready);
    MakePipe(pipes.go);
    MakePipe(pipes.rate);
    if (fork() != 0) continue;
    if (way == Way::kRanks) options.rank = i;
    RunProcess(options, model, way == Way::kRanks ? &memory : nullptr, pipes);
  }
  for (const Pipes& pipes : all) close(pipes.ready[1]), close(pipes.rate[1]);
  for (const Pipes& pipes : all) ReadFrom<char>(pipes.ready[0]);
  for (const Pipes& pipes : all) WriteTo(pipes.go[1], 'g');
  double sum = 0;
  for (const Pipes& pipes : all) sum += ReadFrom<double>(pipes.rate[0]);
  for (const Pipes& pipes : all) {
    for (const int fd : {pipes.ready[0], pipes.go[0], pipes.go[1], pipes.rate[0]}) close(fd);
  }
  while (wait(nullptr) > 0) continue;
  return way == Way::kRanks ? sum / num : sum;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Main(int argc, char** argv) {
  Options options;
  options.threads = 1;
  // smollm2-135m has 9 query heads, which two ranks cannot share.
  options.model_dir = "tests/data/shapes/smollm2-135m-8-heads";
  CLI::App app("Ranks that share a model on the CPU, beside processes that share nothing");
  app.add_option("--model", options.model_dir, "Directory with a config.json");
  app.add_option("--dtype", options.dtype, "bfloat16 or float32");
  app.add_option("--ranks", options.num_processes, "Ranks, and processes beside them");
  app.add_option("--batch", options.batch, "Sequences of each process");
  app.add_option("--context", options.context, "Tokens before the first decode step");
  app.add_option("--steps", options.steps, "Decode steps that are measured");
  app.add_option("--passes", options.passes, "Median of so many");
  app.add_option("--json", options.json_path, "Also write the figures there");
  CLI11_PARSE(app, argc, argv);
  options.max_decode_steps = options.steps + 1;
  options.prompt = 1;
  const absl::StatusOr<engine::ModelConfig> model = engine::LoadModelConfig(options.model_dir);
  Require(model.status());
  std::array<std::vector<double>, kWays.size()> rates;
  for (int pass = 0; pass < options.passes; ++pass) {
    for (const Way way : kWays) {
      rates[static_cast<size_t>(way)].push_back(Measure(options, *model, way));
    }
  }
  std::array<double, kWays.size()> medians{};
  nlohmann::json report = {{"model", options.model_dir},
                           {"dtype", options.dtype},
                           {"ranks", options.num_processes},
                           {"batch", options.batch},
                           {"context", options.context},
                           {"steps", options.steps}};
  for (size_t i = 0; i < kWays.size(); ++i) {
    medians[i] = Median(rates[i]);
    std::printf(
        "%-22s %8.1f tokens/s, %.3f of one\n", kWayNames[i], medians[i], medians[i] / medians[0]);
    report["tokens_per_second"][kWayNames[i]] = rates[i];
  }
  const double floor = medians[static_cast<size_t>(Way::kIndependent)];
  const double ratio = medians[static_cast<size_t>(Way::kRanks)] / floor;
  report["ratio"] = ratio;
  std::printf("ranks over independent processes: %.3f (goal: at least 0.9)\n", ratio);
  if (!options.json_path.empty()) std::ofstream(options.json_path) << report.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) { return pagoda::bench::Main(argc, argv); }
