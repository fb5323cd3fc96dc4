#include "engine/culprit_search.h"

#include <random>
#include <set>

#include "gtest/gtest.h"

namespace pagoda::engine {
namespace {

std::vector<RequestKey> Keys(uint64_t first, uint64_t last) {
  std::vector<RequestKey> keys;
  for (uint64_t key = first; key <= last; ++key) keys.push_back(RequestKey(key));
  return keys;
}

// Runs whoever may run, all in one step: fails while a deadly one is among them.
struct SearchResult {
  std::vector<RequestKey> culprits;
  int num_failures = 0;
};
SearchResult Search(const std::vector<RequestKey>& all, std::set<uint64_t> deadly) {
  CulpritSearch search;
  SearchResult result;
  std::vector<RequestKey> live = all;
  for (int round = 0; round < 10'000; ++round) {
    std::vector<RequestKey> running;
    for (const RequestKey key : live) {
      if (search.MayRun(key)) running.push_back(key);
    }
    const bool fails = std::any_of(running.begin(), running.end(), [&](RequestKey key) {
      return deadly.count(key.value()) > 0;
    });
    if (fails) {
      ++result.num_failures;
      if (const auto culprit = search.Fail(running)) {
        result.culprits.push_back(*culprit);
        live.erase(std::find(live.begin(), live.end(), *culprit));
      }
    } else if (search.is_active()) {
      const std::vector<RequestKey> group = search.group();
      for (const RequestKey key : group) search.Pass(key);
    } else {
      return result;
    }
  }
  ADD_FAILURE() << "the search does not end";
  return result;
}

TEST(CulpritSearchTest, EverybodyMayRunBeforeAFailure) {
  const CulpritSearch search;
  EXPECT_FALSE(search.is_active());
  EXPECT_TRUE(search.MayRun(RequestKey(1)));
}

TEST(CulpritSearchTest, FindsOneAmongManyByHalves) {
  for (const uint64_t size : {1, 2, 3, 5, 8, 100, 256}) {
    for (const uint64_t culprit : {uint64_t{1}, size / 2 + 1, size}) {
      const SearchResult result = Search(Keys(1, size), {culprit});
      ASSERT_EQ(result.culprits, Keys(culprit, culprit)) << size;
      // The first, one for each halving, and one more where it had to be tried apart from others.
      int num_halvings = 0;
      while ((uint64_t{1} << num_halvings) < size) ++num_halvings;
      EXPECT_LE(result.num_failures, num_halvings + 2) << size;
    }
  }
}

TEST(CulpritSearchTest, FindsSeveral) {
  std::mt19937 random(1);
  for (int run = 0; run < 200; ++run) {
    std::set<uint64_t> deadly;
    for (int i = 0; i < 3; ++i) deadly.insert(1 + random() % 40);
    const SearchResult result = Search(Keys(1, 40), deadly);
    std::set<uint64_t> found;
    for (const RequestKey key : result.culprits) found.insert(key.value());
    ASSERT_EQ(found, deadly);
    ASSERT_EQ(result.culprits.size(), deadly.size());
  }
}

TEST(CulpritSearchTest, BlamesNobodyWhenAllPass) {
  CulpritSearch search;
  EXPECT_EQ(search.Fail(Keys(1, 5)), std::nullopt);
  EXPECT_EQ(search.group(), Keys(1, 3));
  EXPECT_FALSE(search.MayRun(RequestKey(4)));
  EXPECT_FALSE(search.MayRun(RequestKey(99)));  // came later
  EXPECT_FALSE(search.Pass(RequestKey(1)));
  EXPECT_FALSE(search.Pass(RequestKey(3)));
  EXPECT_TRUE(search.Pass(RequestKey(2)));
  EXPECT_EQ(search.group(), Keys(4, 5));
  EXPECT_TRUE(search.MayRun(RequestKey(1)));
  EXPECT_FALSE(search.Pass(RequestKey(4)));
  EXPECT_TRUE(search.Pass(RequestKey(5)));
  EXPECT_FALSE(search.is_active());
  EXPECT_TRUE(search.MayRun(RequestKey(99)));
}

TEST(CulpritSearchTest, OneThatFailsAloneIsTriedOnceMore) {
  CulpritSearch search;
  EXPECT_EQ(search.Fail(Keys(7, 7)), std::nullopt);
  EXPECT_TRUE(search.Pass(RequestKey(7)));
  EXPECT_EQ(search.Fail(Keys(8, 8)), std::nullopt);
  EXPECT_TRUE(search.Pass(RequestKey(8)));
  EXPECT_EQ(search.Fail(Keys(7, 7)), RequestKey(7));
  EXPECT_EQ(search.num_explained(), 2);
}

TEST(CulpritSearchTest, OnesThatPassedMayBecomeCulprits) {
  CulpritSearch search;
  EXPECT_EQ(search.Fail(Keys(1, 2)), std::nullopt);
  EXPECT_TRUE(search.Pass(RequestKey(1)));
  // 2 is on trial beside 1: it may have been either.
  EXPECT_EQ(search.Fail(Keys(1, 2)), std::nullopt);
  EXPECT_EQ(search.group(), Keys(2, 2));
  EXPECT_FALSE(search.MayRun(RequestKey(1)));
  EXPECT_TRUE(search.Pass(RequestKey(2)));
  EXPECT_EQ(search.group(), Keys(1, 1));
  EXPECT_EQ(search.Fail(Keys(1, 2)), std::nullopt);
  EXPECT_EQ(search.Fail(Keys(1, 1)), RequestKey(1));
  EXPECT_EQ(search.group(), Keys(2, 2));
}

TEST(CulpritSearchTest, AFailureWithoutSuspectsChangesNothing) {
  CulpritSearch search;
  EXPECT_EQ(search.Fail({}), std::nullopt);
  EXPECT_FALSE(search.is_active());
}

}  // namespace
}  // namespace pagoda::engine
