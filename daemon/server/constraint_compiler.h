#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "daemon/server/idle_thread.h"
#include "daemon/server/text_pool.h"
#include "engine/guided/constraint.h"

namespace pagoda::daemon {

// Compiles the output constraints that the cache does not hold, one after another and apart from
// everything else: what a client sends to take all the time there is takes the time that is left
// over, and nobody waits for it but who asks for constraints that are new. What a compilation may
// cost is counted in work (guided::Limits), not in time, so one that is starved ends as it would
// alone, only later; it ends early when its client is gone. Thread-safe.
class ConstraintCompiler {
 public:
  struct Options {
    size_t max_waiting = 256;
    // Of sources that wait.
    size_t max_waiting_bytes = size_t{16} << 20;
  };
  using Compiled = std::shared_ptr<const engine::guided::CompiledConstraint>;
  using Done = absl::AnyInvocable<void(absl::StatusOr<Compiled>)>;

  explicit ConstraintCompiler(Options options);
  ~ConstraintCompiler();

  // Compiles `source` for `cache` and calls `done` on a thread of the compiler, with CANCELLED when
  // `cancelled` became true before the end; it and `cache` live until then. RESOURCE_EXHAUSTED, and
  // `done` is dropped, when too much waits.
  absl::Status Post(engine::guided::ConstraintSource source,
                    engine::guided::ConstraintCache* cache,
                    const std::atomic<bool>* cancelled,
                    Done done);
  // Ends what waits with an error. Idempotent; nothing is posted afterwards.
  void Stop();

 private:
  absl::StatusOr<Compiled> Compile(const engine::guided::ConstraintSource& source,
                                   engine::guided::ConstraintCache* cache,
                                   const std::atomic<bool>* cancelled);

  std::atomic<bool> stopping_{false};
  // What was made last. The idle thread may be stopped inside an allocation, and who then frees
  // memory of its part of the heap waits for it: so others copy what it has made, and it alone
  // deletes it.
  absl::optional<absl::StatusOr<Compiled>> made_;
  IdleThread idle_;  // of the one thread of `queue_`
  TextPool queue_;
};

}  // namespace pagoda::daemon
