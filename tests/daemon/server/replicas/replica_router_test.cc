#include "daemon/server/replicas/replica_router.h"

#include <list>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

using engine::LiveRequest;
using engine::OutputDelta;
using engine::Request;
using engine::RequestKey;
using engine::TokenId;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Reason = ReplicaRouter::Reason;

constexpr size_t kBlock = 4;

class FakeReplica final : public ReplicaPort {
 public:
  absl::Status TrySubmit(Request* request) override {
    if (!refusal.ok()) return refusal;
    if (on_submit) on_submit(*request);
    submitted.push_back(std::move(*request));
    return absl::OkStatus();
  }
  bool Adopt(std::unique_ptr<LiveRequest>* request) override {
    if (!adopts) return false;
    adopted.push_back(std::move(*request));
    return true;
  }
  void Cancel(RequestKey key) override { cancelled.push_back(key); }
  bool has_workers() const override { return works; }

  bool works = true;
  bool adopts = true;
  absl::Status refusal;
  std::function<void(const Request&)> on_submit;
  std::vector<Request> submitted;
  std::vector<std::unique_ptr<LiveRequest>> adopted;
  std::vector<RequestKey> cancelled;
};

class NoteSink final : public engine::OutputSink {
 public:
  void Deliver(std::vector<OutputDelta> deltas) override {
    for (const OutputDelta& delta : deltas) keys.push_back(delta.key);
  }
  std::vector<RequestKey> keys;
};

class ReplicaRouterTest : public ::testing::Test {
 protected:
  void Start(size_t num_replicas, size_t max_cached_blocks = 1000) {
    replicas_ = std::vector<FakeReplica>(num_replicas);
    router_ = std::make_unique<ReplicaRouter>(
        ReplicaRouter::Options{.num_replicas = num_replicas,
                               .group = &group_,
                               .sink = &sink_,
                               .block_tokens = kBlock,
                               .max_cached_blocks = max_cached_blocks});
    for (size_t i = 0; i < num_replicas; ++i) router_->SetPort(i, &replicas_[i]);
  }
  // Tokens of prompts with equal `group` begin alike, for `num_shared` of them.
  Request New(int group, size_t num_shared = 16, size_t num_own = 8) {
    Request request;
    request.key = RequestKey(next_key_++);
    for (size_t i = 0; i < num_shared; ++i)
      request.prompt.push_back(group * 1000 + static_cast<TokenId>(i));
    for (size_t i = 0; i < num_own; ++i)
      request.prompt.push_back(static_cast<TokenId>(1'000'000 + request.key.value() * 100 + i));
    return request;
  }
  // Where it went.
  size_t Submit(const Request& request) {
    EXPECT_TRUE(router_->Submit(request).ok());
    for (size_t i = 0; i < replicas_.size(); ++i) {
      const auto& submitted = replicas_[i].submitted;
      if (!submitted.empty() && submitted.back().key == request.key) return i;
    }
    ADD_FAILURE() << "nowhere";
    return 0;
  }
  void End(size_t replica, RequestKey key) {
    std::vector<OutputDelta> deltas(1);
    deltas[0].key = key;
    deltas[0].last = true;
    router_->sink(replica)->Deliver(std::move(deltas));
  }
  std::unique_ptr<LiveRequest> Live(const Request& request) {
    auto live = std::make_unique<LiveRequest>(request, 4096, nullptr);
    live->HashPrompt(group_.hasher, kBlock);
    return live;
  }

  engine::EngineGroup group_{"a key of the test"};
  NoteSink sink_;
  std::vector<FakeReplica> replicas_;
  std::unique_ptr<ReplicaRouter> router_;
  uint64_t next_key_ = 1;
};

TEST_F(ReplicaRouterTest, SpreadsWhatIsNotAlike) {
  Start(3);
  for (int i = 0; i < 9; ++i) Submit(New(i));
  for (const FakeReplica& replica : replicas_) EXPECT_EQ(replica.submitted.size(), 3u);
  EXPECT_EQ(router_->num_routed(0, Reason::kLoad), 3u);
  EXPECT_EQ(router_->num_routed(0, Reason::kPrefix), 0u);
}

TEST_F(ReplicaRouterTest, AlikeOnesMeetUntilTheirReplicaIsTooBusy) {
  Start(2);
  const size_t home = Submit(New(1));
  EXPECT_EQ(home, Submit(New(1)));
  EXPECT_EQ(home, Submit(New(1)));
  EXPECT_EQ(home, Submit(New(1)));
  EXPECT_EQ(router_->num_routed(home, Reason::kPrefix), 3u);
  // Four blocks against four sequences.
  EXPECT_NE(home, Submit(New(1)));
}

TEST_F(ReplicaRouterTest, EndsMakeRoom) {
  Start(2);
  const Request first = New(1);
  const size_t home = Submit(first);
  for (int i = 0; i < 20; ++i) {
    const Request next = New(1);
    EXPECT_EQ(Submit(next), home);
    End(home, next.key);
  }
  EXPECT_EQ(sink_.keys.size(), 20u);
}

TEST_F(ReplicaRouterTest, SequencesCountNotRequests) {
  Start(2);
  Request wide = New(1);
  wide.n = 2;
  wide.best_of = 5;
  EXPECT_EQ(Submit(wide), 0u);
  for (int i = 2; i < 6; ++i) EXPECT_EQ(Submit(New(i)), 1u);
}

TEST_F(ReplicaRouterTest, ATenantsRequestsAreSpreadAndSaltsShareNothing) {
  Start(2);
  const auto with_salt = [this](int group, const char* salt) {
    Request request = New(group);
    request.cache_salt = salt;
    return request;
  };
  const size_t home = Submit(with_salt(1, "a"));
  // Alike, but for the salt: nothing is cached for it.
  EXPECT_NE(Submit(with_salt(1, "b")), home);
  // Equally busy: where fewer of b's are.
  EXPECT_EQ(Submit(with_salt(7, "b")), home);
}

TEST_F(ReplicaRouterTest, WithoutPrefixCachingLoadAloneCounts) {
  Start(2, 0);
  for (int i = 0; i < 6; ++i) Submit(New(1));
  EXPECT_EQ(replicas_[0].submitted.size(), 3u);
  EXPECT_EQ(router_->num_routed(0, Reason::kPrefix), 0u);
}

TEST_F(ReplicaRouterTest, PassesOverWhoeverIsFullOrHasEnded) {
  Start(3);
  replicas_[0].refusal = absl::ResourceExhaustedError("full");
  replicas_[1].refusal = absl::UnavailableError("ended");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Submit(New(i)), 2u);
  replicas_[2].refusal = absl::UnavailableError("draining");
  EXPECT_EQ(router_->Submit(New(5)).message(), "full");
  // No trace of what nobody took.
  replicas_[0].refusal = absl::OkStatus();
  EXPECT_EQ(Submit(New(6)), 0u);
}

TEST_F(ReplicaRouterTest, WhatIsWrongWithARequestIsWrongEverywhere) {
  Start(2);
  replicas_[0].refusal = absl::InvalidArgumentError("too long");
  EXPECT_EQ(router_->Submit(New(1)).message(), "too long");
  EXPECT_THAT(replicas_[1].submitted, IsEmpty());
}

TEST_F(ReplicaRouterTest, PrefersThoseWithWorkers) {
  Start(2);
  replicas_[0].works = false;
  for (int i = 0; i < 9; ++i) EXPECT_EQ(Submit(New(i)), 1u);
  // Where there are none, a queue is better than nothing.
  replicas_[1].works = false;
  EXPECT_EQ(Submit(New(20)), 0u);
}

TEST_F(ReplicaRouterTest, CancelsWhereTheRequestIs) {
  Start(2);
  const Request a = New(1), b = New(2);
  EXPECT_EQ(Submit(a), 0u);
  EXPECT_EQ(Submit(b), 1u);
  router_->Cancel(b.key);
  router_->Cancel(RequestKey(999));
  EXPECT_THAT(replicas_[0].cancelled, IsEmpty());
  EXPECT_THAT(replicas_[1].cancelled, ElementsAre(b.key));
  End(1, b.key);
  router_->Cancel(b.key);
  EXPECT_EQ(replicas_[1].cancelled.size(), 1u);
}

TEST_F(ReplicaRouterTest, OthersTakeOverAndCancellationsFollow) {
  Start(3);
  const Request a = New(1), b = New(2), c = New(3);
  EXPECT_EQ(Submit(a), 0u);
  EXPECT_EQ(Submit(b), 1u);
  EXPECT_EQ(Submit(c), 2u);
  replicas_[0].works = false;
  router_->peers(0)->NoteLoss();
  EXPECT_TRUE(router_->peers(0)->CanTakeOver());
  std::vector<std::unique_ptr<LiveRequest>> lost;
  lost.push_back(Live(a));
  router_->peers(0)->TakeOver(&lost);
  EXPECT_THAT(lost, IsEmpty());
  ASSERT_EQ(replicas_[1].adopted.size(), 1u);
  EXPECT_EQ(router_->num_routed(1, Reason::kTakenOver), 1u);
  router_->Cancel(a.key);
  EXPECT_THAT(replicas_[1].cancelled, ElementsAre(a.key));
  // One that was on its way to the first replica.
  router_->peers(0)->ForwardCancel(a.key);
  EXPECT_EQ(replicas_[1].cancelled.size(), 2u);
  router_->peers(1)->ForwardCancel(a.key);
  EXPECT_EQ(replicas_[1].cancelled.size(), 2u);
  // It counts where it is.
  EXPECT_EQ(Submit(New(4)), 2u);
}

TEST_F(ReplicaRouterTest, WhatNobodyTakesStays) {
  Start(2);
  const Request a = New(1), b = New(2);
  EXPECT_EQ(Submit(a), 0u);
  replicas_[1].adopts = false;
  std::vector<std::unique_ptr<LiveRequest>> lost;
  lost.push_back(Live(a));
  router_->peers(0)->TakeOver(&lost);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_NE(lost[0], nullptr);
  replicas_[1].works = false;
  EXPECT_FALSE(router_->peers(0)->CanTakeOver());
  router_->Cancel(a.key);
  EXPECT_THAT(replicas_[0].cancelled, ElementsAre(a.key));
}

TEST_F(ReplicaRouterTest, ALossIsTheEndOfWhatWasCached) {
  Start(2);
  const Request first = New(1);
  const size_t home = Submit(first);
  End(home, first.key);
  router_->peers(home)->NoteLoss();
  Submit(New(1));
  EXPECT_EQ(router_->num_routed(home, Reason::kPrefix), 0u);
}

// A request that ends while it is being submitted leaves nothing behind.
TEST_F(ReplicaRouterTest, AnEndMayComeBeforeSubmitReturns) {
  Start(2);
  replicas_[0].on_submit = [this](const Request& request) { End(0, request.key); };
  for (int i = 0; i < 6; ++i) EXPECT_EQ(Submit(New(1)), 0u);
}

// ---- Hits, by a model of pools that knows nothing of the router's record

// Blocks by what they hold and what comes before; the least recently used goes first.
class PoolModel {
 public:
  explicit PoolModel(size_t max_blocks) : max_blocks_(max_blocks) {}
  // Tokens found.
  size_t Use(const std::vector<TokenId>& prompt) {
    size_t num_hit = 0;
    bool hits = true;
    std::vector<std::string> names;
    std::string name;
    for (size_t i = 0; i + kBlock <= prompt.size(); i += kBlock) {
      for (size_t j = 0; j < kBlock; ++j) name += std::to_string(prompt[i + j]) + ",";
      hits = hits && places_.count(name) > 0;
      num_hit += hits ? kBlock : 0;
      names.push_back(name);
    }
    for (size_t i = names.size(); i-- > 0;) {
      if (const auto found = places_.find(names[i]); found != places_.end())
        order_.erase(found->second);
      order_.push_front(names[i]);
      places_[names[i]] = order_.begin();
    }
    while (order_.size() > max_blocks_) {
      places_.erase(order_.back());
      order_.pop_back();
    }
    return num_hit;
  }

 private:
  const size_t max_blocks_;
  std::list<std::string> order_;
  std::map<std::string, std::list<std::string>::iterator> places_;
};

TEST_F(ReplicaRouterTest, SharedPrefixesHitNearlyAsInOneCache) {
  for (const auto& [num_groups, num_open] :
       {std::pair(8, 8), std::pair(16, 12), std::pair(3, 24)}) {
    constexpr size_t kBlocksOfEach = 300;
    Start(2, kBlocksOfEach);
    PoolModel one(kBlocksOfEach);
    std::vector<PoolModel> each(2, PoolModel(kBlocksOfEach));
    std::mt19937_64 random(static_cast<uint64_t>(num_groups));
    std::vector<std::pair<size_t, RequestKey>> open;
    size_t num_hit_in_one = 0, num_hit = 0;
    std::array<size_t, 2> num_on{};
    for (int i = 0; i < 2000; ++i) {
      const Request request = New(static_cast<int>(random() % static_cast<size_t>(num_groups)), 48);
      num_hit_in_one += one.Use(request.prompt);
      const size_t replica = Submit(request);
      num_hit += each[replica].Use(request.prompt);
      ++num_on[replica];
      open.emplace_back(replica, request.key);
      if (open.size() < static_cast<size_t>(num_open)) continue;
      const size_t ends = random() % open.size();
      End(open[ends].first, open[ends].second);
      open.erase(open.begin() + static_cast<int64_t>(ends));
    }
    EXPECT_GE(num_hit, num_hit_in_one * 95 / 100) << num_groups;
    // And neither is idle.
    EXPECT_GE(std::min(num_on[0], num_on[1]), 500u) << num_groups;
  }
}

}  // namespace
}  // namespace pagoda::daemon
