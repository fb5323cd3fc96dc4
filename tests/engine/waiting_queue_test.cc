#include "engine/waiting_queue.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pagoda::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class WaitingQueueTest : public ::testing::Test {
 protected:
  Sequence* Add(const std::string& tenant, int32_t num_tokens = 10, double weight = 1.0) {
    Request request;
    request.key = RequestKey(live_.size() + 1);
    request.prompt.assign(num_tokens, 1);
    request.tenant = {.name = tenant, .weight = weight};
    live_.push_back(std::make_unique<LiveRequest>(std::move(request), 1000, nullptr));
    Sequence* const sequence = &live_.back()->sequences[0];
    sequence->order = {.arrival = live_.size()};
    queue_.Insert(sequence);
    return sequence;
  }
  std::vector<Sequence*> First(size_t most) {
    std::vector<Sequence*> first;
    queue_.FindFirst(most, &first);
    return first;
  }

  std::vector<std::unique_ptr<LiveRequest>> live_;
  WaitingQueue queue_;
};

TEST_F(WaitingQueueTest, OneTenantIsServedInServiceOrder) {
  EXPECT_EQ(queue_.Head(), nullptr);
  EXPECT_EQ(queue_.Oldest(), nullptr);
  Sequence* const a = Add("");
  Sequence* const b = Add("");
  Sequence* const c = Add("");
  EXPECT_THAT(First(2), ElementsAre(a, b));
  EXPECT_THAT(First(9), ElementsAre(a, b, c));
  a->is_held = true;
  EXPECT_EQ(queue_.Head(), b);
  EXPECT_EQ(queue_.Oldest(), a);
  queue_.Erase(a);
  queue_.Erase(b);
  queue_.Erase(b);
  EXPECT_EQ(queue_.size(), 1u);
  EXPECT_EQ(queue_.Head(), c);
  queue_.Erase(c);
  EXPECT_TRUE(queue_.empty());
  EXPECT_THAT(First(9), IsEmpty());
}

TEST_F(WaitingQueueTest, TheTenantThatWasGivenLessGoesFirst) {
  Sequence* const a = Add("a");
  Sequence* const b = Add("b");
  EXPECT_EQ(queue_.Head(), a);
  a->tenant->virtual_tokens += 5;
  EXPECT_EQ(queue_.Head(), b);
  EXPECT_EQ(queue_.Oldest(), a);
  b->is_held = true;
  EXPECT_EQ(queue_.Head(), a);
}

// 10 tokens each; b has twice the weight.
TEST_F(WaitingQueueTest, TheFirstComeInTurnsByWeight) {
  Sequence* const a1 = Add("a");
  Sequence* const a2 = Add("a");
  Sequence* const a3 = Add("a");
  Sequence* const b1 = Add("b", 10, 2.0);
  Sequence* const b2 = Add("b", 10, 2.0);
  Sequence* const b3 = Add("b", 10, 2.0);
  EXPECT_THAT(First(6), ElementsAre(a1, b1, b2, a2, b3, a3));
}

TEST_F(WaitingQueueTest, NobodySavesUpWhileAbsent) {
  Sequence* const a = Add("a");
  a->tenant->virtual_tokens = 1000;
  Sequence* const b = Add("b");
  EXPECT_EQ(b->tenant->virtual_tokens, 1000);
  // Nor while it only runs, or somebody else does.
  queue_.Erase(a);
  queue_.Erase(b);
  a->tenant->virtual_tokens = 5000;
  a->tenant->num_running = 1;
  EXPECT_EQ(Add("b")->tenant->virtual_tokens, 5000);
  EXPECT_EQ(Add("c")->tenant->virtual_tokens, 5000);
  // What was taken in advance is not forgiven.
  EXPECT_EQ(Add("a")->tenant->virtual_tokens, 5000);
  b->tenant->virtual_tokens = 9000;
  EXPECT_EQ(Add("b")->tenant->virtual_tokens, 9000);
}

TEST_F(WaitingQueueTest, AWeightMayChange) {
  Sequence* const before = Add("a", 10, 1.0);
  EXPECT_EQ(before->tenant->cost_of_token, 1.0);
  EXPECT_EQ(Add("a", 10, 4.0)->tenant, before->tenant);
  EXPECT_EQ(before->tenant->cost_of_token, 0.25);
}

}  // namespace
}  // namespace pagoda::engine
