// What the engine tells of its blocks while somebody watches.
#include <functional>
#include <random>
#include <utility>

#include <gtest/gtest.h>

#include "tests/fakes/engine_harness.h"

namespace pagoda::engine {
namespace {

using Steps = std::vector<std::function<void()>>;

// Each step submits something, and is taken when everything before has ended. `at_end` comes when
// what the last one submitted has its blocks.
void RunSteps(EngineHarness& h, const Steps& steps, const std::function<void()>& at_end = nullptr) {
  size_t next = 0;
  bool has_ended = false;
  steps[next++]();
  const absl::Status status = h.RunToEnd([&](int) {
    if (h.engine->num_live_requests() == 0 && next < steps.size()) {
      steps[next++]();
    } else if (next == steps.size() && at_end && !std::exchange(has_ended, true)) {
      at_end();
    }
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(h.block_sink.violation, "");
}

void Submit(EngineHarness& h, std::vector<TokenId> prompt, int32_t max_tokens) {
  ASSERT_TRUE(h.Submit(h.NewRequest(std::move(prompt), max_tokens)).ok());
}

// Takes a block, and never fills it.
void SubmitShort(EngineHarness& h) { Submit(h, {1}, 3); }

// What the changes have told, to be held against everything, which a new watch tells.
struct Followed {
  void WatchAnew(EngineHarness& h) {
    stored = h.block_sink.stored;
    parents = h.block_sink.parents;
    h.engine->WatchBlocks(h.block_sink.watch + 1);
  }
  void ExpectSame(const EngineHarness& h) const {
    EXPECT_EQ(h.block_sink.stored, stored);
    EXPECT_EQ(h.block_sink.parents, parents);
  }

  std::set<uint64_t> stored;
  std::map<uint64_t, uint64_t> parents;
};

TEST(BlockEventsTest, NothingIsToldUnlessSomebodyWatches) {
  EngineHarness h(EngineHarness::DefaultOptions());
  int num_deliveries = 0;
  RunSteps(h,
           {[&] { Submit(h, Prompt(20), 10); },
            [&] {
              EXPECT_EQ(h.block_sink.num_deliveries, 0);
              h.engine->WatchBlocks(1);
              Submit(h, Prompt(3), 1);
            },
            [&] {
              num_deliveries = h.block_sink.num_deliveries;
              h.engine->WatchBlocks(0);
              Submit(h, Prompt(20, 50), 10);
            }});
  // 20 prompt tokens and all of the output but the last, in blocks of 4.
  EXPECT_EQ(h.block_sink.stored.size(), 7u);
  EXPECT_EQ(h.block_sink.parents.size(), 6u);
  EXPECT_EQ(h.block_sink.num_deliveries, num_deliveries);
}

TEST(BlockEventsTest, SaltedRequestsAreNotTold) {
  EngineHarness h(EngineHarness::DefaultOptions());
  h.engine->WatchBlocks(1);
  Followed followed;
  RunSteps(h,
           {[&] {
              Request salted = h.NewRequest(Prompt(20), 10);
              salted.cache_salt = "tenant";
              ASSERT_TRUE(h.Submit(salted).ok());
            },
            [&] { SubmitShort(h); }},
           [&] { followed.WatchAnew(h); });
  EXPECT_EQ(h.block_sink.num_cleared, 2);
  EXPECT_TRUE(h.block_sink.stored.empty());
  followed.ExpectSame(h);
}

TEST(BlockEventsTest, LosingTheWorkersClearsEverything) {
  EngineHarness::Options options = EngineHarness::DefaultOptions();
  options.config.set_max_worker_restarts(10);
  options.config.set_worker_restart_window_ms(600'000);
  EngineHarness h(options);
  h.engine->WatchBlocks(1);
  Submit(h, Prompt(20), 30);
  size_t stored_at_loss = 0;
  ASSERT_TRUE(h.RunToEnd([&](int num_waits) {
                 if (num_waits != 15) return;
                 stored_at_loss = h.block_sink.stored.size();
                 h.pipe.fault = absl::UnavailableError("it is gone");
               }).ok());
  EXPECT_GT(stored_at_loss, 4u);
  EXPECT_EQ(h.block_sink.num_cleared, 2);
  EXPECT_EQ(h.block_sink.stored.size(), 12u);
  EXPECT_EQ(h.block_sink.violation, "");
}

TEST(BlockEventsTest, FollowingTheChangesIsKnowingTheCache) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    EngineHarness::Options options = EngineHarness::DefaultOptions();
    // Small: blocks are evicted and sequences preempted.
    options.num_kv_blocks = 24;
    options.kv_window = seed % 3 == 0 ? 10 : 0;
    EngineHarness h(options);
    h.engine->WatchBlocks(1);
    const auto submit_some = [&] {
      for (int i = 0; i < 5; ++i) {
        Request request = h.NewRequest(
            Prompt(1 + static_cast<int32_t>(random() % 40), static_cast<TokenId>(random() % 3)),
            1 + static_cast<int32_t>(random() % 12));
        request.n = request.best_of = 1 + static_cast<int32_t>(random() % 2);
        if (random() % 8 == 0) request.cache_salt = "tenant";
        ASSERT_TRUE(h.Submit(request).ok());
      }
    };
    Followed followed;
    Steps steps(6, submit_some);
    steps.push_back([&] { SubmitShort(h); });
    RunSteps(h, steps, [&] { followed.WatchAnew(h); });
    EXPECT_GT(h.metrics.kv_evictions.value(), 0u);
    followed.ExpectSame(h);
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace pagoda::engine
