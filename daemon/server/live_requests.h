#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "engine/ids.h"
#include "kernels/base/mutex.h"

namespace pagoda::daemon {

// The ids that clients gave to requests that are running, apart for each tenant. Thread-safe.
class LiveRequestIds {
 public:
  // What the others take: tenants neither meet each other's ids nor end each other's requests.
  static std::string NameOf(absl::string_view tenant, absl::string_view request_id);

  // False when the id is in use.
  bool Insert(const std::string& name, engine::RequestKey key);
  void Erase(const std::string& name);
  // Somebody else than its caller wants the request to end. Its key, which the engine may not know
  // yet: whoever submits it asks WasAborted afterwards. Absent: there is no such request.
  absl::optional<engine::RequestKey> Abort(const std::string& name);
  // Whether the request of that id is still that one, and has been aborted.
  bool WasAborted(const std::string& name, engine::RequestKey key) const;

 private:
  struct Live {
    engine::RequestKey key;
    bool is_aborted = false;
  };

  mutable Mutex mutex_;
  absl::flat_hash_map<std::string, Live> live_ ABSL_GUARDED_BY(mutex_);
};

// Numbers generation calls, and counts them from their arrival until their transport is done with
// them, so that a drain knows when the last has ended. Thread-safe.
class CallCounter {
 public:
  engine::RequestKey NextKey() {
    return engine::RequestKey(next_key_.fetch_add(1, std::memory_order_relaxed));
  }
  void Begin();
  void End();
  // Whether no call was open at some moment before `deadline`.
  bool WaitUntilNone(absl::Time deadline);
  size_t num_open() const;

 private:
  std::atomic<uint64_t> next_key_{1};
  mutable Mutex mutex_;
  size_t num_open_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Returns when `count` has stood still for `quiet`, at the limit, or when `ends` says so.
void WaitUntilStill(const std::atomic<uint64_t>& count,
                    absl::Duration quiet,
                    absl::Time limit,
                    absl::FunctionRef<bool()> ends);

}  // namespace pagoda::daemon
