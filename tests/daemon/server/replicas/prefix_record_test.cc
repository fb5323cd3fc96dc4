#include "daemon/server/replicas/prefix_record.h"

#include <algorithm>
#include <list>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

using engine::BlockHash;

BlockHash Hash(uint64_t n) { return {.low = n, .high = ~n}; }

std::vector<BlockHash> Hashes(std::vector<uint64_t> numbers) {
  std::vector<BlockHash> hashes;
  for (const uint64_t n : numbers) hashes.push_back(Hash(n));
  return hashes;
}

TEST(PrefixRecordTest, CountsFromTheFirstBlock) {
  PrefixRecord record(10);
  EXPECT_EQ(record.NumHeld(Hashes({1, 2})), 0u);
  record.Note(Hashes({1, 2, 3}));
  EXPECT_EQ(record.NumHeld(Hashes({1, 2, 3, 4})), 3u);
  EXPECT_EQ(record.NumHeld(Hashes({1, 9, 3})), 1u);
  EXPECT_EQ(record.NumHeld(Hashes({9, 2, 3})), 0u);
  EXPECT_EQ(record.NumHeld({}), 0u);
  record.Clear();
  EXPECT_EQ(record.NumHeld(Hashes({1})), 0u);
  EXPECT_EQ(record.size(), 0u);
}

TEST(PrefixRecordTest, ForgetsTheEndsOfTheOldest) {
  PrefixRecord record(5);
  record.Note(Hashes({1, 2, 3}));
  record.Note(Hashes({4, 5, 6}));
  EXPECT_EQ(record.NumHeld(Hashes({1, 2, 3})), 2u);
  EXPECT_EQ(record.NumHeld(Hashes({4, 5, 6})), 3u);
  record.Note(Hashes({1}));
  record.Note(Hashes({7, 8}));
  EXPECT_EQ(record.NumHeld(Hashes({1})), 1u);
  EXPECT_EQ(record.NumHeld(Hashes({4, 5, 6})), 2u);
}

TEST(PrefixRecordTest, HoldsTheBeginningOfAPromptThatDoesNotFit) {
  PrefixRecord record(3);
  record.Note(Hashes({1, 2, 3, 4, 5}));
  EXPECT_EQ(record.NumHeld(Hashes({1, 2, 3, 4, 5})), 3u);
  PrefixRecord none(0);
  none.Note(Hashes({1}));
  EXPECT_EQ(none.NumHeld(Hashes({1})), 0u);
}

TEST(PrefixRecordTest, IsAListOfWhatWasUsedLast) {
  constexpr size_t kMax = 12;
  PrefixRecord record(kMax);
  std::list<uint64_t> model;  // most recent first
  std::mt19937_64 random(3);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<uint64_t> prompt;
    const uint64_t begin = random() % 5 * 10;
    for (uint64_t i = 0; i < 1 + random() % 9; ++i) prompt.push_back(begin + i);
    const size_t num_held = record.NumHeld(Hashes(prompt));
    size_t expected = 0;
    while (expected < prompt.size() &&
           std::find(model.begin(), model.end(), prompt[expected]) != model.end())
      ++expected;
    ASSERT_EQ(num_held, expected) << round;
    record.Note(Hashes(prompt));
    for (size_t i = prompt.size(); i-- > 0;) {
      model.remove(prompt[i]);
      model.push_front(prompt[i]);
    }
    while (model.size() > kMax) model.pop_back();
    ASSERT_EQ(record.size(), model.size());
  }
}

}  // namespace
}  // namespace pagoda::daemon
