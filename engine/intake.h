#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/ids.h"
#include "engine/queue_rate.h"
#include "engine/sequence.h"
#include "kernels/base/mutex.h"

namespace pagoda::engine {

// A tenant may take its queue_share of each.
struct IntakeLimits {
  int64_t max_waiting_requests = 0;  // a request for n sequences counts as n
  int64_t max_waiting_tokens = 0;    // of prompts; one for each sequence
};

// The door between front-end threads and the engine thread: a bounded queue of requests, and
// cancellations. What waits behind it (in the scheduler's queue, never yet run) counts against the
// bounds too. A request that finds nobody waiting is taken whatever its size, or it could never be;
// one that finds nobody of its tenant is held to the bounds in all alone. Thread-safe but for Take,
// which is the engine thread's.
class Intake {
 public:
  explicit Intake(const IntakeLimits& limits);
  ~Intake();

  // What a request takes of the bounds.
  struct Load {
    int64_t num_sequences = 0;
    int64_t num_tokens = 0;
  };
  static Load LoadOf(const Request& request);

  // Who asks for a place, and when.
  struct Arrival {
    const Tenant* tenant = nullptr;  // null: of nobody in particular
    int64_t now_ns = 0;
    std::optional<int64_t> deadline_ns;
  };
  static Arrival ArrivalOf(const Request& request, int64_t now_ns);

  // Takes a place in the queue, before any costly work is done for the request: RESOURCE_EXHAUSTED
  // when full or when the request would not run before its deadline, saying when to come again, or
  // the status of Close.
  absl::Status Reserve(const Load& load, const Arrival& arrival);
  // Hands over a request that has its place. Fails, and gives the place back, only after Close;
  // `live` stays then.
  absl::Status Push(std::unique_ptr<LiveRequest>* live);
  void Cancel(RequestKey key, int64_t now_ns);
  // Takes a request that another engine had taken, whatever the bounds. False after End, and then
  // `live` stays.
  bool PushAdopted(std::unique_ptr<LiveRequest>* live, int64_t now_ns);
  // Requests get `why` from now on. The first call counts.
  void Close(absl::Status why);
  // Closes, also for adopted ones: what comes is not taken any more.
  void End(absl::Status why);
  // Makes wake_fd() readable.
  void Wake();

  struct Cancellation {
    RequestKey key;
    int64_t requested_ns = 0;
  };
  struct Batch {
    std::vector<std::unique_ptr<LiveRequest>> requests;
    std::vector<Cancellation> cancellations;
  };
  // Swaps what came since the last call into `batch`, which must be empty.
  void Take(Batch* batch);
  // The request runs or has ended: it waits no more.
  void Leave(const Load& load, const Arrival& arrival);
  // A request that had left waits again.
  void Return(const Load& load, const Arrival& arrival);
  // Readable when there is something to take. -1: the process had no descriptor left.
  int wake_fd() const { return wake_fd_; }
  int64_t num_waiting() const;

 private:
  // What waits of one tenant; kept while there is any.
  using TenantLoads = absl::flat_hash_map<std::string, Load>;

  absl::Status CheckRoom(const Load& load, const Load& of_tenant, double share) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckDeadline(const Load& of_tenant, double share, const Arrival& arrival) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // How long what waits keeps a newcomer of the tenant waiting; absent: not known.
  std::optional<int64_t> EstimateWaitNs(const Load& of_tenant, double share) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Add(const Load& load, const Arrival& arrival) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveBack(const Load& load, const Tenant& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const IntakeLimits limits_;
  const int wake_fd_;

  mutable Mutex mutex_;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  Load waiting_ ABSL_GUARDED_BY(mutex_);
  TenantLoads waiting_by_tenant_ ABSL_GUARDED_BY(mutex_);
  QueueRate rate_ ABSL_GUARDED_BY(mutex_);
  Batch batch_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda::engine
