// Runs of the whole engine in simulated time. A failure names its seed; $PAGODA_SIMULATION_SEED
// runs that one alone. `ninja simulate` goes on for an hour from seeds of its own.

#include "tests/engine/simulation/simulation.h"

#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

#include "kernels/base/log.h"

namespace pagoda::engine::simulation {
namespace {

class SimulationTest : public ::testing::Test {
 protected:
  void SetUp() override { SetLogLevel("error"); }
};

SimulationReport RunSeed(uint64_t seed) {
  Simulation simulation(seed);
  return simulation.Run();
}

TEST_F(SimulationTest, NothingIsLostInSimulatedHours) {
  const char* const only = std::getenv("PAGODA_SIMULATION_SEED");
  const uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const uint64_t last = only != nullptr ? first : 80;
  SimulationReport all;
  for (uint64_t seed = first; seed <= last; ++seed) {
    const SimulationReport report = RunSeed(seed);
    ASSERT_EQ(report.violation, "") << "PAGODA_SIMULATION_SEED=" << seed << " runs it again";
    all.Add(report);
  }
  std::printf("%s\n", all.Text().c_str());
  if (only != nullptr) return;
  // The runs did reach what they are for.
  EXPECT_GT(all.num_preemptions, 100u);
  EXPECT_GT(all.num_restarts, 100u);
  EXPECT_GT(all.num_quarantined, 0u);
  EXPECT_GT(all.num_cancelled, 100u);
  EXPECT_GT(all.num_past_deadline, 100u);
  EXPECT_GT(all.num_slow_readers, 5u);
  EXPECT_GT(all.num_stop_strings, 100u);
  EXPECT_GT(all.num_beams, 50u);
  EXPECT_GT(all.num_drafts_accepted, 100u);
  EXPECT_GT(all.num_hit_tokens, 1000u);
}

TEST_F(SimulationTest, ASeedIsTheSameRunEveryTime) {
  for (const uint64_t seed : {3, 8, 21}) {
    const SimulationReport one = RunSeed(seed), two = RunSeed(seed);
    EXPECT_EQ(one.digest, two.digest) << seed;
    EXPECT_EQ(one.num_steps, two.num_steps) << seed;
    EXPECT_EQ(one.simulated_ns, two.simulated_ns) << seed;
  }
}

}  // namespace
}  // namespace pagoda::engine::simulation
