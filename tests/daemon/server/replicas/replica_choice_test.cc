#include "daemon/server/replicas/replica_choice.h"

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

using ::testing::Eq;

TEST(ReplicaChoiceTest, NobodyMayTake) {
  EXPECT_EQ(ChooseReplica({}), absl::nullopt);
  EXPECT_EQ(ChooseReplica({{.may_take = false}, {.may_take = false}}), absl::nullopt);
}

TEST(ReplicaChoiceTest, TheLeastBusyWhereNothingIsCached) {
  EXPECT_EQ(ChooseReplica({{.num_sequences = 3}, {.num_sequences = 2}, {.num_sequences = 4}}), 1u);
  EXPECT_EQ(ChooseReplica({{.num_sequences = 3}, {.may_take = false}, {.num_sequences = 4}}), 0u);
  EXPECT_EQ(ChooseReplica({{}, {}}), 0u);
}

TEST(ReplicaChoiceTest, ABlockIsWorthASequence) {
  const auto choose = [](int64_t busier, size_t num_blocks) {
    return *ChooseReplica({{.num_sequences = 10},
                           {.num_sequences = 10 + busier, .num_prompt_blocks_cached = num_blocks}});
  };
  EXPECT_EQ(choose(0, 1), 1u);
  EXPECT_EQ(choose(1, 1), 0u);  // equal costs: the least busy
  EXPECT_EQ(choose(1, 2), 1u);
  EXPECT_EQ(choose(4, 3), 0u);
}

TEST(ReplicaChoiceTest, NoCacheIsWorthAMuchBusierReplica) {
  const auto choose = [](int64_t fewest, int64_t busier) {
    return *ChooseReplica({{.num_sequences = fewest},
                           {.num_sequences = fewest + busier, .num_prompt_blocks_cached = 1000}});
  };
  EXPECT_EQ(choose(0, 4), 1u);
  EXPECT_EQ(choose(0, 5), 0u);
  EXPECT_EQ(choose(8, 4), 1u);
  EXPECT_EQ(choose(40, 20), 1u);
  EXPECT_EQ(choose(40, 21), 0u);
}

TEST(ReplicaChoiceTest, EqualsAreToldApartByTenantThenByWhatTheyCache) {
  EXPECT_EQ(
      ChooseReplica({{.num_sequences = 2, .num_tenant_sequences = 2},
                     {.num_sequences = 2, .num_tenant_sequences = 1, .num_blocks_cached = 9}}),
      1u);
  EXPECT_EQ(ChooseReplica({{.num_blocks_cached = 9}, {.num_blocks_cached = 8}}), 1u);
}

// The rule once more, by elimination.
size_t ChooseByElimination(const std::vector<ReplicaView>& views) {
  std::vector<size_t> left;
  for (size_t i = 0; i < views.size(); ++i)
    if (views[i].may_take) left.push_back(i);
  int64_t fewest = views[left[0]].num_sequences;
  for (const size_t i : left) fewest = std::min(fewest, views[i].num_sequences);
  const auto keep_least = [&](auto value_of) {
    int64_t least = value_of(views[left[0]]);
    for (const size_t i : left) least = std::min<int64_t>(least, value_of(views[i]));
    std::vector<size_t> kept;
    for (const size_t i : left)
      if (value_of(views[i]) == least) kept.push_back(i);
    left = kept;
  };
  std::vector<size_t> near;
  for (const size_t i : left) {
    const int64_t busier = views[i].num_sequences - fewest;
    if (busier <= 4 || 2 * busier <= fewest) near.push_back(i);
  }
  left = near;
  keep_least([](const ReplicaView& v) {
    return v.num_sequences - static_cast<int64_t>(v.num_prompt_blocks_cached);
  });
  keep_least([](const ReplicaView& v) { return v.num_sequences; });
  keep_least([](const ReplicaView& v) { return v.num_tenant_sequences; });
  keep_least([](const ReplicaView& v) { return static_cast<int64_t>(v.num_blocks_cached); });
  return left.front();
}

TEST(ReplicaChoiceTest, IsTheRuleByElimination) {
  std::mt19937_64 random(7);
  const auto below = [&random](uint64_t n) { return static_cast<int64_t>(random() % n); };
  for (int round = 0; round < 20'000; ++round) {
    std::vector<ReplicaView> views(1 + random() % 5);
    for (ReplicaView& view : views) {
      view = {.may_take = below(4) > 0,
              .num_sequences = below(round % 2 == 0 ? 8 : 60),
              .num_tenant_sequences = below(3),
              .num_prompt_blocks_cached = static_cast<size_t>(below(6)),
              .num_blocks_cached = static_cast<size_t>(below(3))};
    }
    views[random() % views.size()].may_take = true;
    ASSERT_THAT(ChooseReplica(views), Eq(ChooseByElimination(views))) << round;
  }
}

}  // namespace
}  // namespace pagoda::daemon
