#pragma once

#include <cstddef>
#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "kernels/base/mutex.h"

namespace pagoda::daemon {

// Threads that parse, check and tokenise, so that neither gRPC's threads nor the engine's do.
// Bounded: what does not fit is refused, not queued for ever. Thread-safe.
class TextPool {
 public:
  using Task = absl::AnyInvocable<void()>;

  struct Options {
    size_t num_threads = 1;
    size_t max_waiting_tasks = 1024;
    // Of received messages that wait.
    size_t max_waiting_bytes = size_t{256} << 20;
    const char* thread_name = "text";
    // What requests wait to be, in the words of a refusal.
    const char* purpose = "tokenised";
  };

  explicit TextPool(Options options);
  ~TextPool();

  // Runs `task` on some thread, in order of arrival. RESOURCE_EXHAUSTED, and `task` is dropped,
  // when too much waits. A single message larger than the bound is still taken when nothing else
  // waits.
  absl::Status Post(size_t message_bytes, Task task);
  // Runs what waits, then joins. Idempotent; nothing is posted afterwards.
  void Stop();

 private:
  struct Waiting {
    size_t message_bytes;
    Task task;
  };

  void Run();

  const Options options_;
  Mutex mutex_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // the owner's
};

}  // namespace pagoda::daemon
