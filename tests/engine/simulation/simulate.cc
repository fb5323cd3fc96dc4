// Simulates the engine for so long: `engine_simulation [SECONDS [FIRST_SEED]]`. Without a seed it
// begins at the time of day. The first run in which something does not hold ends it, by its seed.

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "kernels/base/log.h"
#include "tests/engine/simulation/simulation.h"

int main(int argc, char** argv) {
  using pagoda::engine::simulation::Simulation;
  using pagoda::engine::simulation::SimulationReport;
  using Clock = std::chrono::steady_clock;
  const double seconds = argc > 1 ? std::strtod(argv[1], nullptr) : 60.0;
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : static_cast<uint64_t>(now) << 20;
  if (argc > 3 || seconds <= 0.0) {
    std::fprintf(stderr, "usage: engine_simulation [SECONDS [FIRST_SEED]]\n");
    return 2;
  }
  pagoda::SetLogLevel("error");
  std::printf("from seed %llu on\n", static_cast<unsigned long long>(seed));
  SimulationReport all;
  const auto begin = Clock::now();
  auto last_word = begin;
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  for (; elapsed() < seconds; ++seed) {
    Simulation simulation(seed);
    all.Add(simulation.Run());
    if (!all.violation.empty()) {
      std::printf(
          "FAIL seed %llu: %s\n", static_cast<unsigned long long>(seed), all.violation.c_str());
      return 1;
    }
    if (Clock::now() - last_word > std::chrono::seconds(60)) {
      last_word = Clock::now();
      std::printf("%.0f s: %s\n", elapsed(), all.Text().c_str());
      std::fflush(stdout);
    }
  }
  std::printf("%.0f s: %s\n", elapsed(), all.Text().c_str());
  std::printf("%.1f simulated hours a minute\n",
              static_cast<double>(all.simulated_ns) / 3.6e12 / elapsed() * 60.0);
  return 0;
}
