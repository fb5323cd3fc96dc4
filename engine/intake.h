#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "engine/ids.h"
#include "engine/sequence.h"
#include "kernels/base/mutex.h"

namespace pagoda::engine {

struct IntakeLimits {
  int64_t max_waiting_requests = 0;  // a request for n sequences counts as n
  int64_t max_waiting_tokens = 0;    // of prompts; one for each sequence
};

// The door between front-end threads and the engine thread: a bounded queue of requests, and
// cancellations. What waits behind it (in the scheduler's queue, never yet run) counts against the
// bounds too. A request that finds nobody waiting is taken whatever its size, or it could never be.
// Thread-safe but for Take and Started, which are the engine thread's.
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

  // Takes a place in the queue, before any costly work is done for the request: RESOURCE_EXHAUSTED
  // when full, or the status of Close.
  absl::Status Reserve(const Load& load);
  // Hands over a request that has its place. Fails, and gives the place back, only after Close.
  absl::Status Push(std::unique_ptr<LiveRequest> live);
  void Cancel(RequestKey key, int64_t now_ns);
  // Requests get `why` from now on. The first call counts.
  void Close(absl::Status why);
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
  void Leave(const Load& load);
  // Readable when there is something to take.
  int wake_fd() const { return wake_fd_; }
  int64_t num_waiting() const;

 private:
  const IntakeLimits limits_;
  const int wake_fd_;

  mutable Mutex mutex_;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  Load waiting_ ABSL_GUARDED_BY(mutex_);
  Batch batch_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda::engine
