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
  Sequence* Add(const std::string& tenant,
                int32_t num_tokens = 10,
                double weight = 1.0,
                int32_t priority = 0) {
    Request request;
    request.key = RequestKey(live_.size() + 1);
    request.prompt.assign(num_tokens, 1);
    request.tenant = {.name = tenant, .weight = weight};
    live_.push_back(std::make_unique<LiveRequest>(std::move(request), 1000, nullptr));
    Sequence* const sequence = &live_.back()->sequences[0];
    sequence->order = {.priority = priority, .arrival = live_.size()};
    queue_.Insert(sequence);
    return sequence;
  }
  std::vector<Sequence*> First(size_t most) {
    std::vector<Sequence*> first;
    queue_.FindCandidates(most, &first);
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

TEST_F(WaitingQueueTest, ShortOnesAreFoundHoweverManyWait) {
  Sequence* const head = Add("", 100);
  Sequence* const second = Add("", 100);
  for (int i = 0; i < 1000; ++i) Add("", 100);
  Sequence* const short_one = Add("", 20);
  Sequence* const shorter = Add("", 10);
  Sequence* const later = Add("", 10);
  EXPECT_THAT(First(5), ElementsAre(head, shorter, later, short_one, second));
  // The head is one of them once.
  queue_.Erase(shorter);
  queue_.Erase(later);
  queue_.Erase(head);
  queue_.Erase(second);
  EXPECT_THAT(First(2), ElementsAre(queue_.Head(), short_one));
  while (queue_.Head() != short_one) queue_.Erase(queue_.Head());
  EXPECT_THAT(First(2), ElementsAre(short_one));
}

TEST_F(WaitingQueueTest, PriorityGoesBeforeLength) {
  Sequence* const head = Add("", 100, 1.0, -2);
  Sequence* const last = Add("", 10, 1.0, 1);
  Sequence* const important = Add("", 50, 1.0, -1);
  Sequence* const ordinary = Add("", 20);
  EXPECT_THAT(First(9), ElementsAre(head, important, ordinary, last));
}

// What a preempted sequence gets back while it waits does not move it.
TEST_F(WaitingQueueTest, TokensThatComeWhileItWaitsChangeNoPlace) {
  Sequence* const head = Add("", 100);
  Sequence* const a = Add("", 20);
  Sequence* const b = Add("", 21);
  a->num_known_tokens += 5;
  EXPECT_THAT(First(9), ElementsAre(head, a, b));
  queue_.Erase(a);
  EXPECT_THAT(First(9), ElementsAre(head, b));
  queue_.Insert(a);
  EXPECT_THAT(First(9), ElementsAre(head, b, a));
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
