#include "daemon/server/vllm/kv_event_hub.h"

#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/impl/codegen/proto_buffer_reader.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/service_under_test.h"

namespace pagoda::daemon {
namespace {

using engine::BlockEvents;
using engine::BlockHash;

constexpr uint32_t kBlockSize = 2;

BlockHash HashOf(uint64_t id) { return {.low = id, .high = ~id}; }

// Tokens of a block follow from its number.
std::vector<engine::TokenId> TokensOf(uint64_t id) {
  return {static_cast<engine::TokenId>(2 * id), static_cast<engine::TokenId>(2 * id + 1)};
}

void Store(BlockEvents* events, uint64_t id, uint64_t parent = 0) {
  const BlockHash parent_hash = HashOf(parent);
  events->AddStored(HashOf(id), parent == 0 ? nullptr : &parent_hash, TokensOf(id));
}

// A client that takes a batch when the test says so, and knows what the events have told it.
class FakeSubscriber final : public KvEventSubscriber {
 public:
  FakeSubscriber(KvEventHub* hub, uint64_t start) : hub_(hub), id_(hub->NewId()), last_(start) {
    hub->Attach(id_, this, start);
  }

  void Write(grpc::ByteBuffer batch) override {
    MutexLock lock(&mutex_);
    EXPECT_FALSE(has_batch_);
    grpc::ProtoBufferReader reader(&batch);
    EXPECT_TRUE(batch_.ParseFromZeroCopyStream(&reader));
    has_batch_ = true;
  }
  void End(const absl::Status& status) override {
    MutexLock lock(&mutex_);
    end_ = status;
  }
  bool cancelled() const override { return false; }

  // Takes the next batch; false when none comes.
  bool Take() {
    if (!Eventually([this] {
          MutexLock lock(&mutex_);
          return has_batch_;
        })) {
      return false;
    }
    MutexLock lock(&mutex_);
    Apply();
    // The next may be written from NoteWritten on.
    taken_.Swap(&batch_);
    has_batch_ = false;
    hub_->NoteWritten(id_);
    return true;
  }
  // Takes batches until it knows exactly these blocks.
  bool TakeUntil(const std::set<uint64_t>& blocks) {
    while (Known() != blocks) {
      if (!Take()) return false;
    }
    return true;
  }
  std::set<uint64_t> Known() const {
    std::set<uint64_t> known;
    for (const auto& [hash, parent] : parents_) known.insert(hash);
    return known;
  }
  void Cancel() { hub_->NoteCancelled(id_); }
  bool HasBatch() const {
    MutexLock lock(&mutex_);
    return has_batch_;
  }
  absl::optional<absl::Status> end() const {
    MutexLock lock(&mutex_);
    return end_;
  }
  int num_cleared() const { return num_cleared_; }
  uint64_t last_event_id() const { return last_event_id_; }
  // The last that was taken.
  const smg_pb::KvEventBatch& batch() const { return taken_; }

 private:
  void Apply() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    EXPECT_EQ(batch_.sequence_number(), ++last_);
    EXPECT_GT(batch_.timestamp(), 1.7e9);
    EXPECT_EQ(batch_.dp_rank(), 0);
    for (const smg_pb::KvCacheEvent& event : batch_.events()) {
      if (event.event_id() != 0) {
        EXPECT_GT(event.event_id(), last_event_id_);
        last_event_id_ = event.event_id();
      }
      if (event.has_cleared()) {
        parents_.clear();
        ++num_cleared_;
      }
      for (const int64_t hash : event.removed().block_hashes())
        EXPECT_EQ(parents_.erase(static_cast<uint64_t>(hash)), 1u) << hash;
      if (event.has_stored()) ApplyStored(event.stored());
    }
  }
  void ApplyStored(const smg_pb::KvBlocksStored& stored) {
    uint64_t parent =
        stored.has_parent_block_hash() ? static_cast<uint64_t>(stored.parent_block_hash()) : 0;
    for (const smg_pb::KvBlock& block : stored.blocks()) {
      const auto id = static_cast<uint64_t>(block.block_hash());
      EXPECT_EQ(block.block_size(), static_cast<int32_t>(kBlockSize));
      EXPECT_THAT(block.token_ids(), ::testing::ElementsAreArray(TokensOf(id)));
      EXPECT_TRUE(parents_.emplace(id, parent).second) << id;
      parent = id;
    }
  }

  KvEventHub* const hub_;
  const uint64_t id_;
  uint64_t last_;
  mutable Mutex mutex_;
  bool has_batch_ ABSL_GUARDED_BY(mutex_) = false;
  smg_pb::KvEventBatch batch_;
  smg_pb::KvEventBatch taken_;
  absl::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, uint64_t> parents_;  // of the blocks that are known; 0: none
  int num_cleared_ = 0;
  uint64_t last_event_id_ = 0;
};

// The engine's side: a cache of blocks without order.
class FakeCache {
 public:
  explicit FakeCache(KvEventHub* hub) : hub_(hub) {
    hub->SetWatch([this](uint64_t watch) { watch_.store(watch); });
  }

  // Waits until the hub asks, as the engine would notice, and tells everything.
  void Begin() {
    ASSERT_TRUE(Eventually([this] { return watch_.load() != told_watch_; }));
    told_watch_ = watch_.load();
    if (told_watch_ == 0) return;
    BlockEvents events = New();
    events.AddCleared();
    for (const auto& [id, parent] : blocks) Store(&events, id, parent);
    hub_->DeliverBlocks(std::move(events));
  }
  BlockEvents New() const { return {.watch = told_watch_, .block_size = kBlockSize}; }
  void Add(uint64_t id, uint64_t parent = 0) {
    blocks[id] = parent;
    BlockEvents events = New();
    Store(&events, id, parent);
    Deliver(std::move(events));
  }
  void Remove(uint64_t id) {
    blocks.erase(id);
    BlockEvents events = New();
    events.AddRemoved(HashOf(id));
    Deliver(std::move(events));
  }
  std::set<uint64_t> Ids() const {
    std::set<uint64_t> ids;
    for (const auto& [id, parent] : blocks) ids.insert(id);
    return ids;
  }
  uint64_t watch() const { return watch_.load(); }
  bool IsAskedAnew() const { return watch_.load() != told_watch_; }

  std::map<uint64_t, uint64_t> blocks;

 private:
  void Deliver(BlockEvents events) {
    if (told_watch_ != 0) hub_->DeliverBlocks(std::move(events));
  }

  KvEventHub* const hub_;
  std::atomic<uint64_t> watch_{0};
  uint64_t told_watch_ = 0;
};

TEST(KvEventHubTest, AStreamBeginsWithWhatIsCachedAndGoesOnWithChanges) {
  KvEventHub hub({});
  FakeCache cache(&hub);
  cache.Add(1);
  cache.Add(2, 1);
  EXPECT_EQ(cache.watch(), 0u);  // nobody asks
  FakeSubscriber subscriber(&hub, 0);
  cache.Begin();
  ASSERT_TRUE(subscriber.TakeUntil({1, 2}));
  EXPECT_EQ(subscriber.num_cleared(), 1);
  // One chain: one event.
  EXPECT_EQ(subscriber.batch().events_size(), 2);
  EXPECT_EQ(subscriber.last_event_id(), 0u);
  cache.Add(3, 2);
  ASSERT_TRUE(subscriber.TakeUntil({1, 2, 3}));
  EXPECT_EQ(subscriber.batch().events(0).stored().parent_block_hash(), 2);
  cache.Remove(2);
  ASSERT_TRUE(subscriber.TakeUntil({1, 3}));
  EXPECT_EQ(subscriber.num_cleared(), 1);
  EXPECT_EQ(subscriber.last_event_id(), 2u);
  // Who comes later is told by the hub; who comes back goes on from its number.
  FakeSubscriber later(&hub, 77);
  ASSERT_TRUE(later.TakeUntil({1, 3}));
  EXPECT_EQ(later.batch().sequence_number(), 78u);
  EXPECT_FALSE(cache.IsAskedAnew());
  subscriber.Cancel();
  EXPECT_TRUE(Eventually([&] { return subscriber.end().has_value(); }));
  EXPECT_NE(cache.watch(), 0u);
  later.Cancel();
  EXPECT_TRUE(Eventually([&] { return cache.watch() == 0; }));
}

TEST(KvEventHubTest, ASlowSubscriberIsToldToForgetAndThenEverything) {
  KvEventHub hub({.max_waiting_bytes = 512});
  FakeCache cache(&hub);
  FakeSubscriber slow(&hub, 0), fast(&hub, 0);
  cache.Begin();
  ASSERT_TRUE(fast.Take());
  EXPECT_TRUE(Eventually([&] { return slow.HasBatch(); }));  // and does not take it
  std::set<uint64_t> all;
  for (uint64_t id = 1; id <= 200; ++id) {
    cache.Add(id, id - 1);
    all.insert(id);
    ASSERT_TRUE(fast.TakeUntil(all));
  }
  EXPECT_EQ(hub.num_overflows(), 1u);
  EXPECT_EQ(fast.num_cleared(), 1);
  ASSERT_TRUE(slow.TakeUntil(all));
  EXPECT_EQ(slow.num_cleared(), 2);
  // Both follow from here.
  cache.Add(300);
  all.insert(300);
  EXPECT_TRUE(slow.TakeUntil(all));
  EXPECT_TRUE(fast.TakeUntil(all));
  EXPECT_EQ(slow.num_cleared(), 2);
  hub.EndAll(absl::UnavailableError("over"));
  EXPECT_TRUE(Eventually([&] { return slow.end().has_value() && fast.end().has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*slow.end()));
}

TEST(KvEventHubTest, AHubThatCannotFollowAsksAnew) {
  KvEventHub hub({.max_waiting_events = 8});
  FakeCache cache(&hub);
  FakeSubscriber subscriber(&hub, 0);
  cache.Begin();
  ASSERT_TRUE(subscriber.Take());
  // More at once than may wait.
  BlockEvents many = cache.New();
  for (uint64_t id = 1; id <= 9; ++id) {
    Store(&many, id);
    cache.blocks[id] = 0;
  }
  hub.DeliverBlocks(std::move(many));
  cache.Begin();
  EXPECT_TRUE(subscriber.TakeUntil(cache.Ids()));
  EXPECT_EQ(subscriber.num_cleared(), 2);
  hub.EndAll(absl::UnavailableError("over"));
  EXPECT_TRUE(Eventually([&] { return subscriber.end().has_value(); }));
}

TEST(KvEventHubTest, LargeCachesComeInPiecesThatEveryClientTakes) {
  KvEventHub hub({});
  FakeCache cache(&hub);
  for (uint64_t id = 1; id <= 100'000; ++id) cache.blocks[id] = id % 100 == 1 ? 0 : id - 1;
  FakeSubscriber subscriber(&hub, 5);
  cache.Begin();
  const std::set<uint64_t> ids = cache.Ids();
  int num_batches = 0;
  size_t most_bytes = 0;
  while (subscriber.Known().size() < ids.size()) {
    ASSERT_TRUE(subscriber.Take());
    ++num_batches;
    most_bytes = std::max(most_bytes, subscriber.batch().ByteSizeLong());
  }
  EXPECT_GT(num_batches, 1);
  EXPECT_LT(most_bytes, size_t{4} << 20);
  EXPECT_EQ(subscriber.num_cleared(), 1);
  subscriber.Cancel();
  EXPECT_TRUE(Eventually([&] { return subscriber.end().has_value(); }));
}

TEST(KvEventHubTest, SubscribersAreLimited) {
  KvEventHub hub({.max_subscribers = 1});
  FakeCache cache(&hub);
  FakeSubscriber first(&hub, 0), second(&hub, 0);
  EXPECT_TRUE(Eventually([&] { return second.end().has_value(); }));
  EXPECT_TRUE(absl::IsResourceExhausted(*second.end()));
  hub.EndAll(absl::UnavailableError("over"));
  EXPECT_TRUE(Eventually([&] { return first.end().has_value(); }));
  FakeSubscriber late(&hub, 0);
  EXPECT_TRUE(Eventually([&] { return late.end().has_value(); }));
}

// Random changes, readers of every pace, comings and goings: whoever has taken everything knows the
// cache.
TEST(KvEventHubTest, RandomChangesAndReaders) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    KvEventHub hub({.max_waiting_events = 64, .max_waiting_bytes = 300});
    FakeCache cache(&hub);
    std::vector<std::unique_ptr<FakeSubscriber>> subscribers;
    uint64_t next_id = 1;
    for (int i = 0; i < 400; ++i) {
      const uint32_t dice = random() % 100;
      if (cache.IsAskedAnew()) cache.Begin();
      if (dice < 40) {
        const auto parent = cache.blocks.lower_bound(random() % next_id);
        cache.Add(next_id++, parent == cache.blocks.end() ? 0 : parent->first);
      } else if (dice < 60 && !cache.blocks.empty()) {
        cache.Remove(std::next(cache.blocks.begin(), random() % cache.blocks.size())->first);
      } else if (dice < 65 && subscribers.size() < 4) {
        subscribers.push_back(std::make_unique<FakeSubscriber>(&hub, random() % 1000));
      } else if (dice < 95 && !subscribers.empty()) {
        FakeSubscriber& reader = *subscribers[random() % subscribers.size()];
        if (reader.HasBatch()) reader.Take();
      } else if (dice < 97 && !subscribers.empty()) {
        const size_t leaving = random() % subscribers.size();
        subscribers[leaving]->Cancel();
        ASSERT_TRUE(Eventually([&] { return subscribers[leaving]->end().has_value(); }));
        subscribers.erase(subscribers.begin() + static_cast<ptrdiff_t>(leaving));
      }
    }
    for (const auto& subscriber : subscribers) {
      EXPECT_TRUE(Eventually([&] {
        if (cache.IsAskedAnew()) cache.Begin();
        if (subscriber->HasBatch()) subscriber->Take();
        return subscriber->num_cleared() > 0 && subscriber->Known() == cache.Ids();
      })) << "seed "
          << seed;
    }
    hub.EndAll(absl::UnavailableError("over"));
    for (const auto& subscriber : subscribers)
      EXPECT_TRUE(Eventually([&] { return subscriber->end().has_value(); }));
  }
}

}  // namespace
}  // namespace pagoda::daemon
