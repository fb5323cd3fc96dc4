#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/base/clock.h"
#include "kernels/base/mutex.h"

namespace pagoda::daemon {

// Makes guessing keys slow: whoever has shown many wrong ones lately waits for the answer to the
// next. Right keys never wait, wherever they come from. Memory is bounded: of addresses the one
// that has been quiet for longest is forgotten, and answers beyond the bound do not wait. Thread-
// safe.
class KeyGuard {
 public:
  struct Options {
    // Mistakes, at once and then one a `forgiven_after`, that nobody waits for.
    double num_free = 10;
    absl::Duration forgiven_after = absl::Seconds(1);
    // For each mistake beyond, and at most.
    absl::Duration step = absl::Milliseconds(100);
    absl::Duration longest = absl::Seconds(5);
    size_t max_addresses = 4096;
    size_t max_waiting = 4096;
    const Clock* clock = &Clock::Monotonic();
  };

  explicit KeyGuard(const Options& options) : options_(options) {}
  ~KeyGuard() { Stop(); }
  KeyGuard(const KeyGuard&) = delete;
  KeyGuard& operator=(const KeyGuard&) = delete;

  // Notes a wrong key of that address; what its answer waits.
  absl::Duration NoteWrongKey(absl::string_view address);
  // Calls `answer` after `delay` on a thread of its own, or on this one where none may wait.
  void AnswerLater(absl::Duration delay, absl::AnyInvocable<void()> answer);
  // Calls what waits; from now on nothing does. Idempotent.
  void Stop();

  size_t num_addresses() const;
  size_t num_waiting() const;

 private:
  struct Record {
    double num_wrong = 0;
    int64_t at_ns = 0;
  };

  void Run();
  double Forgiven(const Record& record, int64_t now_ns) const;

  const Options options_;
  mutable Mutex mutex_;
  absl::flat_hash_map<std::string, Record> records_ ABSL_GUARDED_BY(mutex_);
  std::multimap<int64_t, absl::AnyInvocable<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);  // from the first answer that waits on
};

// Of a peer as gRPC names it ("ipv4:192.0.2.1:4711", "ipv6:%5B::1%5D:4711", "unix:..."): what one
// user of the network has, which is a whole /64 of IPv6.
std::string AddressOfPeer(absl::string_view peer);

}  // namespace pagoda::daemon
