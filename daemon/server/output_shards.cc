#include "daemon/server/output_shards.h"

#include <pthread.h>
#include <utility>

#include "daemon/server/rpc_error.h"

namespace pagoda::daemon {
namespace {

// Stalls last seconds, so their sweep need not be exact.
constexpr absl::Duration kSweepInterval = absl::Milliseconds(100);

}  // namespace

struct OutputShards::Shard {
  Mutex mutex;
  std::vector<Event> events ABSL_GUARDED_BY(mutex);
  std::vector<Batch> batches ABSL_GUARDED_BY(mutex);
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  // The shard's thread only.
  absl::flat_hash_map<engine::RequestKey, GenerationCall*> calls;
  absl::flat_hash_set<engine::RequestKey> slow;  // may have caught up since
  int64_t next_sweep_ns = 0;
  // Set once, before the thread's first wait.
  std::thread thread;
};

OutputShards::OutputShards(Options options) : options_(options) {
  for (size_t i = 0; i < options_.num_shards; ++i) {
    shards_.push_back(std::make_unique<Shard>());
    Shard* shard = shards_.back().get();
    shard->thread = std::thread([this, shard] { Run(shard); });
    pthread_setname_np(shard->thread.native_handle(), "output");
  }
}

OutputShards::~OutputShards() { Stop(); }

void OutputShards::Stop() {
  for (const auto& shard : shards_) {
    MutexLock lock(&shard->mutex);
    shard->stopping = true;
  }
  for (const auto& shard : shards_) {
    if (shard->thread.joinable()) shard->thread.join();
  }
}

OutputShards::Shard& OutputShards::ShardOf(engine::RequestKey key) {
  return *shards_[key.value() % shards_.size()];
}

void OutputShards::Post(Event event) {
  Shard& shard = ShardOf(event.key);
  MutexLock lock(&shard.mutex);
  shard.events.push_back(std::move(event));
}

void OutputShards::Deliver(std::vector<engine::OutputDelta> deltas) {
  if (deltas.empty()) return;
  const auto batch = std::make_shared<std::vector<engine::OutputDelta>>(std::move(deltas));
  for (const auto& shard : shards_) {
    MutexLock lock(&shard->mutex);
    shard->batches.push_back(batch);
  }
}

void OutputShards::Attach(GenerationCall* call) {
  Post({Event::Kind::kAttached, call->key(), call, {}});
}

void OutputShards::NoteSubmitted(engine::RequestKey key, absl::Status status) {
  Post({Event::Kind::kSubmitted, key, nullptr, std::move(status)});
}

void OutputShards::NoteWriteReady(engine::RequestKey key) {
  Post({Event::Kind::kWriteReady, key, nullptr, {}});
}

void OutputShards::NoteCancelled(engine::RequestKey key) {
  Post({Event::Kind::kCancelled, key, nullptr, {}});
}

void OutputShards::Run(Shard* shard) {
  const auto has_news = [shard]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard->mutex) {
    return shard->stopping || !shard->events.empty() || !shard->batches.empty();
  };
  std::vector<Event> events;
  std::vector<Batch> batches;
  while (true) {
    {
      MutexLock lock(&shard->mutex);
      const absl::Duration wait = shard->slow.empty() ? absl::InfiniteDuration() : kSweepInterval;
      shard->mutex.AwaitWithTimeout(absl::Condition(&has_news), wait);
      if (shard->stopping && shard->events.empty() && shard->batches.empty()) return;
      events.swap(shard->events);
      batches.swap(shard->batches);
    }
    // A call is attached before its first output can exist, so events come first.
    for (Event& event : events) Handle(shard, std::move(event));
    for (const Batch& batch : batches) HandleBatch(shard, batch.get());
    events.clear();
    batches.clear();
    EndStalled(shard);
  }
}

void OutputShards::Handle(Shard* shard, Event event) {
  if (event.kind == Event::Kind::kAttached) {
    if (event.call->cancelled()) {
      event.call->End(CallCancelledError());
    } else {
      shard->calls.emplace(event.key, event.call);
    }
    return;
  }
  const auto found = shard->calls.find(event.key);
  GenerationCall* call = found == shard->calls.end() ? nullptr : found->second;
  switch (event.kind) {
    case Event::Kind::kAttached:
      break;
    case Event::Kind::kSubmitted:
      // A call that was cancelled between the two is not wanted by anybody.
      if (call == nullptr && event.status.ok()) engine_->Cancel(event.key);
      if (call != nullptr && event.status.ok()) call->NoteAdmitted();
      if (call != nullptr && !event.status.ok()) {
        shard->calls.erase(found);
        call->End(event.status);
      }
      break;
    case Event::Kind::kWriteReady:
      if (call != nullptr) Keep(shard, event.key, call, call->ContinueWriting());
      break;
    case Event::Kind::kCancelled:
      if (call == nullptr) break;
      // Past its deadline the engine ends the request by itself, and counts it so.
      if (!call->DeadlinePassed()) engine_->Cancel(event.key);
      shard->calls.erase(found);
      call->End(CallCancelledError());
      break;
  }
}

void OutputShards::HandleBatch(Shard* shard, std::vector<engine::OutputDelta>* batch) {
  for (engine::OutputDelta& delta : *batch) {
    if (&ShardOf(delta.key) != shard) continue;
    const auto found = shard->calls.find(delta.key);
    if (found == shard->calls.end()) continue;  // ended early
    GenerationCall* call = found->second;
    const engine::RequestKey key = delta.key;
    Keep(shard, key, call, call->Deliver(std::move(delta)));
  }
}

void OutputShards::Keep(Shard* shard,
                        engine::RequestKey key,
                        GenerationCall* call,
                        GenerationCall::Progress progress) {
  if (progress == GenerationCall::Progress::kEnded) {
    shard->calls.erase(key);  // `call` may be gone already
  } else if (call->stalled_since_ns().has_value()) {
    shard->slow.insert(key);
  }
}

void OutputShards::EndStalled(Shard* shard) {
  if (shard->slow.empty()) return;
  const int64_t now_ns = options_.clock->NowNs();
  if (now_ns < shard->next_sweep_ns) return;
  shard->next_sweep_ns = now_ns + absl::ToInt64Nanoseconds(kSweepInterval);
  const int64_t timeout_ns = absl::ToInt64Nanoseconds(options_.stall_timeout);
  std::vector<engine::RequestKey> caught_up;
  for (const engine::RequestKey key : shard->slow) {
    const auto found = shard->calls.find(key);
    const auto since_ns =
        found == shard->calls.end() ? absl::nullopt : found->second->stalled_since_ns();
    if (since_ns.has_value() && now_ns - *since_ns < timeout_ns) continue;
    caught_up.push_back(key);
    if (!since_ns.has_value()) continue;
    GenerationCall* call = found->second;
    shard->calls.erase(found);
    call->EndSlow("nothing was taken within the stall timeout");
  }
  for (const engine::RequestKey key : caught_up) shard->slow.erase(key);
}

}  // namespace pagoda::daemon
