#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "daemon/server/vllm/kv_event_mirror.h"
#include "engine/kv/block_events.h"
#include "grpcpp/support/byte_buffer.h"
#include "kernels/base/mutex.h"

namespace pagoda::daemon {

// A stream of batches to somebody. The hub's thread alone calls it, from Attach to End, after which
// it may be gone.
class KvEventSubscriber {
 public:
  virtual ~KvEventSubscriber() = default;
  // One at a time: the next follows NoteWritten.
  virtual void Write(grpc::ByteBuffer batch) = 0;
  virtual void End(const absl::Status& status) = 0;
  // Has left already.
  virtual bool cancelled() const = 0;
};

// Takes block events from the engine and gives them to subscribers, on a thread of its own. The
// engine is asked for events only while there is a subscriber.
//
// Each stream is numbered without gaps from where its subscriber stood, and begins with all that is
// cached. A subscriber whose batches would take more than max_waiting_bytes gets no more of them,
// but, when it has taken what is on its way, all that is cached then. The same happens to all when
// the hub itself cannot follow the engine. Thread-safe.
class KvEventHub final : public engine::BlockEventSink {
 public:
  struct Options {
    // Of the engine, not yet handled.
    size_t max_waiting_events = size_t{1} << 20;
    // Of one subscriber, beside what restates the cache.
    size_t max_waiting_bytes = size_t{4} << 20;
    size_t max_subscribers = 64;
  };

  explicit KvEventHub(const Options& options);
  ~KvEventHub() override;
  // What asks the engine (Engine::WatchBlocks). Before the first subscriber.
  void SetWatch(std::function<void(uint64_t)> watch) { watch_blocks_ = std::move(watch); }

  // Engine thread.
  void DeliverBlocks(engine::BlockEvents events) override;

  // Any thread. Ids are of NewId; those of subscribers that are gone are ignored.
  uint64_t NewId() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  // `last_sequence_number`: of the last batch that the subscriber has; 0: none.
  void Attach(uint64_t id, KvEventSubscriber* subscriber, uint64_t last_sequence_number);
  void NoteWritten(uint64_t id);
  void NoteCancelled(uint64_t id);
  // Ends every stream with `why`, and those that come later.
  void EndAll(absl::Status why);
  // Joins. Idempotent. REQUIRES: every subscriber has ended or been cancelled.
  void Stop();

  // Subscribers that events were dropped for, ever.
  uint64_t num_overflows() const { return num_overflows_.load(std::memory_order_relaxed); }

 private:
  struct Event {
    enum class Kind : uint8_t { kAttached, kWritten, kCancelled };
    Kind kind;
    uint64_t id = 0;
    KvEventSubscriber* subscriber = nullptr;  // kAttached
    uint64_t last_sequence_number = 0;        // kAttached
  };
  struct Subscription {
    KvEventSubscriber* subscriber = nullptr;
    uint64_t last_sequence_number = 0;
    bool is_writing = false;
    bool needs_state = true;
    std::deque<grpc::Slice> state;    // goes first
    std::deque<grpc::Slice> waiting;  // events after it
    size_t waiting_bytes = 0;
  };
  struct Inbox {
    std::vector<Event> events;
    std::vector<engine::BlockEvents> batches;
    size_t num_block_events = 0;
    bool has_dropped = false;
    bool is_stopping = false;

    bool HasNews() const {
      return !events.empty() || !batches.empty() || has_dropped || is_stopping;
    }
  };

  void Post(const Event& event);
  // ---- The hub's thread
  void Run();
  void Handle(const Event& event);
  void Begin(const Event& event);
  void HandleBatch(const engine::BlockEvents& batch);
  void Queue(const std::vector<grpc::Slice>& slices);
  // Asks the engine anew; everybody needs the state that it will tell.
  void Watch();
  void Unwatch();
  void ForgetWaiting(Subscription* subscription) const;
  void WriteNext();
  std::vector<grpc::Slice> State() const;
  void EndSubscriptions(const absl::Status& why);

  const Options options_;
  std::function<void(uint64_t)> watch_blocks_;
  std::atomic<uint64_t> next_id_{1};
  std::atomic<uint64_t> num_overflows_{0};

  Mutex mutex_;
  Inbox inbox_ ABSL_GUARDED_BY(mutex_);
  absl::Status end_ ABSL_GUARDED_BY(mutex_);

  // ---- The hub's thread
  absl::flat_hash_map<uint64_t, Subscription> subscriptions_;
  KvEventMirror mirror_;
  bool is_state_known_ = false;
  uint32_t block_size_ = 0;
  uint64_t watch_ = 0;  // 0: none
  uint64_t last_watch_ = 0;
  uint64_t last_event_id_ = 0;

  std::thread thread_;  // last: it uses the others
};

}  // namespace pagoda::daemon
