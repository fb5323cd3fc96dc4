#include "daemon/server/vllm/kv_event_hub.h"

#include <pthread.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/server/rpc_error.h"

namespace pagoda::daemon {
namespace {

double SecondsSinceEpoch() { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); }

}  // namespace

KvEventHub::KvEventHub(const Options& options) : options_(options), thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "kv-events");
}

KvEventHub::~KvEventHub() { Stop(); }

void KvEventHub::Stop() {
  {
    MutexLock lock(&mutex_);
    inbox_.is_stopping = true;
  }
  if (thread_.joinable()) thread_.join();
}

void KvEventHub::DeliverBlocks(engine::BlockEvents events) {
  // What begins a watch is all that there is, however much.
  const bool begins = events.events.front().kind == engine::BlockEvent::Kind::kCleared;
  MutexLock lock(&mutex_);
  if (!begins) inbox_.num_block_events += events.events.size();
  if (inbox_.num_block_events > options_.max_waiting_events) {
    inbox_.batches.clear();
    inbox_.num_block_events = 0;
    inbox_.has_dropped = true;
    return;
  }
  inbox_.batches.push_back(std::move(events));
}

void KvEventHub::Post(const Event& event) {
  MutexLock lock(&mutex_);
  inbox_.events.push_back(event);
}

void KvEventHub::Attach(uint64_t id, KvEventSubscriber* subscriber, uint64_t last_sequence_number) {
  Post({.kind = Event::Kind::kAttached,
        .id = id,
        .subscriber = subscriber,
        .last_sequence_number = last_sequence_number});
}

void KvEventHub::NoteWritten(uint64_t id) { Post({.kind = Event::Kind::kWritten, .id = id}); }

void KvEventHub::NoteCancelled(uint64_t id) { Post({.kind = Event::Kind::kCancelled, .id = id}); }

void KvEventHub::EndAll(absl::Status why) {
  MutexLock lock(&mutex_);
  if (end_.ok()) end_ = std::move(why);
  // Something to wake for.
  inbox_.has_dropped = true;
}

void KvEventHub::Run() {
  const auto has_news = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return inbox_.HasNews(); };
  while (true) {
    Inbox news;
    absl::Status end;
    {
      MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_news));
      std::swap(news, inbox_);
      inbox_.is_stopping = news.is_stopping;
      end = end_;
    }
    for (const Event& event : news.events) Handle(event);
    if (!end.ok()) EndSubscriptions(end);
    // Batches that came after a drop belong to the watch that ends here.
    if (news.has_dropped && watch_ != 0) {
      Watch();
    } else {
      for (const engine::BlockEvents& batch : news.batches) HandleBatch(batch);
    }
    WriteNext();
    if (news.is_stopping) return;
  }
}

void KvEventHub::Handle(const Event& event) {
  if (event.kind == Event::Kind::kAttached) return Begin(event);
  const auto found = subscriptions_.find(event.id);
  if (found == subscriptions_.end()) return;
  if (event.kind == Event::Kind::kWritten) {
    found->second.is_writing = false;
    return;
  }
  KvEventSubscriber* const subscriber = found->second.subscriber;
  subscriptions_.erase(found);
  subscriber->End(CallCancelledError());
  if (subscriptions_.empty()) Unwatch();
}

void KvEventHub::Begin(const Event& event) {
  if (event.subscriber->cancelled()) return event.subscriber->End(CallCancelledError());
  if (subscriptions_.size() >= options_.max_subscribers) {
    return event.subscriber->End(absl::ResourceExhaustedError(absl::StrCat(
        "there are ", subscriptions_.size(), " subscribers of KV events; the limit is reached")));
  }
  subscriptions_[event.id] = {.subscriber = event.subscriber,
                              .last_sequence_number = event.last_sequence_number};
  if (watch_ == 0) Watch();
}

void KvEventHub::Watch() {
  watch_ = ++last_watch_;
  is_state_known_ = false;
  mirror_.Clear();
  for (auto& [id, subscription] : subscriptions_) ForgetWaiting(&subscription);
  watch_blocks_(watch_);
}

void KvEventHub::Unwatch() {
  watch_ = 0;
  is_state_known_ = false;
  mirror_.Clear();
  watch_blocks_(0);
}

void KvEventHub::ForgetWaiting(Subscription* subscription) const {
  subscription->needs_state = true;
  subscription->state.clear();
  subscription->waiting.clear();
  subscription->waiting_bytes = 0;
}

void KvEventHub::HandleBatch(const engine::BlockEvents& batch) {
  if (batch.watch != watch_) return;  // of a watch that has ended
  block_size_ = batch.block_size;
  if (!is_state_known_) {
    // The first of a watch tells everything, which subscribers get from the mirror.
    mirror_.Apply(batch, nullptr);
    is_state_known_ = true;
    return;
  }
  KvEventBatches batches({.timestamp = SecondsSinceEpoch(),
                          .block_size = block_size_,
                          .last_event_id = &last_event_id_});
  mirror_.Apply(batch, &batches);
  Queue(batches.Take());
}

void KvEventHub::Queue(const std::vector<grpc::Slice>& slices) {
  size_t num_bytes = 0;
  for (const grpc::Slice& slice : slices) num_bytes += slice.size();
  for (auto& [id, subscription] : subscriptions_) {
    if (subscription.needs_state) continue;
    if (subscription.waiting_bytes + num_bytes > options_.max_waiting_bytes) {
      num_overflows_.fetch_add(1, std::memory_order_relaxed);
      ForgetWaiting(&subscription);
      continue;
    }
    subscription.waiting.insert(subscription.waiting.end(), slices.begin(), slices.end());
    subscription.waiting_bytes += num_bytes;
  }
}

std::vector<grpc::Slice> KvEventHub::State() const {
  KvEventBatches batches({.timestamp = SecondsSinceEpoch(), .block_size = block_size_});
  mirror_.TellState(&batches);
  return batches.Take();
}

void KvEventHub::WriteNext() {
  std::vector<grpc::Slice> state;
  for (auto& [id, subscription] : subscriptions_) {
    if (subscription.is_writing) continue;
    if (subscription.needs_state && is_state_known_) {
      if (state.empty()) state = State();
      subscription.state.assign(state.begin(), state.end());
      subscription.needs_state = false;
    }
    const bool is_state = !subscription.state.empty();
    std::deque<grpc::Slice>& source = is_state ? subscription.state : subscription.waiting;
    if (source.empty()) continue;
    const grpc::Slice slice = std::move(source.front());
    source.pop_front();
    if (!is_state) subscription.waiting_bytes -= slice.size();
    subscription.is_writing = true;
    subscription.subscriber->Write(NumberKvEventBatch(++subscription.last_sequence_number, slice));
  }
}

void KvEventHub::EndSubscriptions(const absl::Status& why) {
  if (subscriptions_.empty()) return;
  for (auto& [id, subscription] : subscriptions_) subscription.subscriber->End(why);
  subscriptions_.clear();
  Unwatch();
}

}  // namespace pagoda::daemon
