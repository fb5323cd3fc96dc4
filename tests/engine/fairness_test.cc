// What tenants get of an engine that cannot serve all that they send.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/fakes/engine_harness.h"

namespace pagoda::engine {
namespace {

// Keeps `depth` requests of a tenant live.
struct Load {
  std::string tenant;
  double weight = 1.0;
  int depth = 0;
  int32_t prompt_tokens = 0;
  int32_t max_tokens = 0;
};

struct Served {
  int num_submitted = 0, num_ended = 0;
  int64_t num_tokens = 0;  // computed, of requests that ended
  int most_waits = 0;      // from a request's submission to its end
};

class FairnessTest : public ::testing::Test {
 protected:
  static EngineHarness::Options Options() {
    EngineHarness::Options options = EngineHarness::DefaultOptions();
    options.config.set_max_num_seqs(4);
    options.config.set_max_num_batched_tokens(16);
    options.config.set_prefix_caching(false);
    options.config.set_max_waiting_requests(1000);
    options.config.set_max_waiting_tokens(100'000);
    options.num_kv_blocks = 256;
    return options;
  }

  // Runs the loads against one engine for so many steps, after as many that do not count.
  std::map<std::string, Served> Run(const std::vector<Load>& loads, int num_waits) {
    EngineHarness harness(Options());
    std::map<std::string, Served> served;
    std::map<uint64_t, std::pair<const Load*, int>> live;
    const auto act = [&](int wait) {
      for (auto it = live.begin(); it != live.end();) {
        const auto& [load, begin] = it->second;
        if (!harness.sink.requests[it->first].has_ended) {
          ++it;
          continue;
        }
        if (wait > num_waits) {
          Served& its = served[load->tenant];
          ++its.num_ended;
          // Nothing comes after the last token, so it is not computed.
          its.num_tokens += load->prompt_tokens + load->max_tokens - 1;
          its.most_waits = std::max(its.most_waits, wait - begin);
        }
        it = live.erase(it);
      }
      for (const Load& load : loads) {
        auto is_its = [&load](const auto& entry) { return entry.second.first == &load; };
        for (auto n = std::count_if(live.begin(), live.end(), is_its); n < load.depth; ++n) {
          Request request = harness.NewRequest(Prompt(load.prompt_tokens), load.max_tokens);
          request.tenant = {.name = load.tenant, .weight = load.weight};
          const uint64_t key = request.key.value();
          ASSERT_TRUE(harness.Submit(std::move(request)).ok());
          live[key] = {&load, wait};
          ++served[load.tenant].num_submitted;
        }
      }
    };
    act(0);
    EXPECT_TRUE(harness.RunToEnd(act, 2 * num_waits).ok());
    EXPECT_EQ(harness.sink.violation, "");
    return served;
  }
};

TEST_F(FairnessTest, TenTimesTheLoadGetsNoMoreThanItsPart) {
  auto served = Run({{.tenant = "loud", .depth = 40, .prompt_tokens = 12, .max_tokens = 8},
                     {.tenant = "quiet", .depth = 4, .prompt_tokens = 12, .max_tokens = 8}},
                    2000);
  const auto loud = static_cast<double>(served["loud"].num_tokens);
  const auto quiet = static_cast<double>(served["quiet"].num_tokens);
  EXPECT_GT(quiet, 4000);
  EXPECT_NEAR(loud / quiet, 1.0, 0.05);
}

TEST_F(FairnessTest, TokensCountAndNotRequests) {
  auto served = Run({{.tenant = "long", .depth = 10, .prompt_tokens = 60, .max_tokens = 20},
                     {.tenant = "short", .depth = 40, .prompt_tokens = 4, .max_tokens = 4}},
                    3000);
  const auto by_long = static_cast<double>(served["long"].num_tokens);
  const auto by_short = static_cast<double>(served["short"].num_tokens);
  EXPECT_NEAR(by_long / by_short, 1.0, 0.05);
  EXPECT_GT(served["short"].num_ended, 5 * served["long"].num_ended);
}

TEST_F(FairnessTest, PartsFollowWeights) {
  auto served =
      Run({{.tenant = "a", .weight = 3.0, .depth = 20, .prompt_tokens = 12, .max_tokens = 8},
           {.tenant = "b", .weight = 1.0, .depth = 20, .prompt_tokens = 12, .max_tokens = 8}},
          3000);
  const auto a = static_cast<double>(served["a"].num_tokens);
  const auto b = static_cast<double>(served["b"].num_tokens);
  EXPECT_NEAR(a / b, 3.0, 0.3);
}

// One request at a time, beside floods of two kinds: it waits for a place that becomes free, not
// for the flood.
TEST_F(FairnessTest, NobodyStarves) {
  auto served = Run({{.tenant = "shorts", .depth = 100, .prompt_tokens = 2, .max_tokens = 2},
                     {.tenant = "longs", .depth = 100, .prompt_tokens = 200, .max_tokens = 40},
                     {.tenant = "one", .depth = 1, .prompt_tokens = 30, .max_tokens = 4}},
                    3000);
  EXPECT_GT(served["one"].num_ended, 30);
  EXPECT_LT(served["one"].most_waits, 200);
  EXPECT_GT(served["longs"].num_ended, 10);
  EXPECT_GT(served["shorts"].num_ended, 100);
}

// Tenants share no blocks, whatever salts their clients choose.
TEST_F(FairnessTest, ThePrefixCacheIsOfOneTenant) {
  struct Case {
    std::string tenant, salt;
    int32_t num_cached;
  };
  const std::vector<Case> cases = {{"a", "", 0},
                                   {"a", "", 16},
                                   {"b", "", 0},
                                   {"", "", 0},
                                   {"", "a", 0},
                                   {"b", "a", 0},
                                   {"b", "", 16},
                                   {"", "", 16}};
  EngineHarness harness(EngineHarness::DefaultOptions());
  size_t num_submitted = 0;
  uint64_t key = 0;
  const auto submit_next = [&](int) {
    if (num_submitted > 0) {
      const CollectedRequest& last = harness.sink.requests[key];
      if (!last.has_ended) return;
      const Case& its = cases[num_submitted - 1];
      EXPECT_EQ(last.started->num_cached_tokens, its.num_cached) << its.tenant << "/" << its.salt;
    }
    if (num_submitted == cases.size()) return;
    Request request = harness.NewRequest(Prompt(17), 2);
    request.tenant.name = cases[num_submitted].tenant;
    request.cache_salt = cases[num_submitted].salt;
    key = request.key.value();
    ASSERT_TRUE(harness.Submit(std::move(request)).ok());
    ++num_submitted;
  };
  submit_next(0);
  EXPECT_TRUE(harness.RunToEnd(submit_next).ok());
  EXPECT_EQ(num_submitted, cases.size());
}

// What is asked for between rounds: the state, and a cache without its contents.
TEST_F(FairnessTest, StateAndFlush) {
  EngineHarness harness(EngineHarness::DefaultOptions());
  Request request = harness.NewRequest(Prompt(17), 30);
  request.tenant = {.name = "red", .weight = 2.0};
  ASSERT_TRUE(harness.Submit(std::move(request)).ok());
  EngineState state;
  uint64_t num_flushed = 0;
  int32_t num_cached_later = -1;
  const auto act = [&](int wait) {
    if (wait == 12) {
      ASSERT_TRUE(harness.engine->DumpState([&state](EngineState s) { state = std::move(s); }));
      ASSERT_TRUE(harness.engine->FlushPrefixCache([&](uint64_t n) { num_flushed = n; }));
    }
    if (wait == 14) {
      Request same = harness.NewRequest(Prompt(17), 2);
      same.tenant.name = "red";
      ASSERT_TRUE(harness.Submit(std::move(same)).ok());
    }
  };
  EXPECT_TRUE(harness.RunToEnd(act).ok());
  ASSERT_EQ(state.sequences.size(), 1u);
  EXPECT_EQ(state.sequences[0].tenant, "red");
  EXPECT_EQ(state.sequences[0].num_prompt_tokens, 17);
  EXPECT_TRUE(state.sequences[0].slot.has_value());
  EXPECT_GT(state.sequences[0].age_ns, 0);
  ASSERT_EQ(state.tenants.size(), 1u);
  EXPECT_EQ(state.tenants[0].weight, 2.0);
  EXPECT_EQ(state.tenants[0].num_running, 1);
  EXPECT_EQ(state.num_used_blocks + state.num_cached_blocks + state.num_free_blocks,
            state.num_blocks);
  EXPECT_GE(num_flushed, 4u);
  num_cached_later = harness.sink.requests[2].started->num_cached_tokens;
  EXPECT_EQ(num_cached_later, 0);
  EXPECT_EQ(harness.sink.requests[1].sequences[0].tokens.size(), 30u);
  EXPECT_FALSE(harness.engine->DumpState([](EngineState) {}));
}

}  // namespace
}  // namespace pagoda::engine
