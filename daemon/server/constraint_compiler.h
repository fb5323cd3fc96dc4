#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "daemon/server/idle_thread.h"
#include "daemon/server/text_pool.h"
#include "engine/guided/constraint.h"

namespace pagoda::daemon {

// Compiles the output constraints that the cache does not hold, one after another and apart from
// everything else. A little of the processor's time it takes as everybody does, so that new
// constraints are quick on a busy machine, too; beyond that it takes what is left over: who sends
// what is made to take all the time there is gets that. What a compilation may cost is counted in
// work (guided::Limits), not in time, so one that is starved ends as it would alone, only later; it
// ends early when its client is gone. Thread-safe.
class ConstraintCompiler {
 public:
  struct Options {
    size_t max_waiting = 256;
    // Of sources that wait.
    size_t max_waiting_bytes = size_t{16} << 20;
    // Of the processor's time as everybody's: most that is saved up, and what comes back of the
    // time that passes. A compilation that began with some left is not cut off.
    absl::Duration allowance = absl::Milliseconds(100);
    double allowance_share = 0.003;
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
  // Of the thread of `queue_`.
  bool HasAllowance();
  absl::StatusOr<Compiled> Make(const engine::guided::ConstraintSource& source,
                                const engine::guided::Limits& limits);
  absl::StatusOr<Compiled> Compile(const engine::guided::ConstraintSource& source,
                                   engine::guided::ConstraintCache* cache,
                                   const std::atomic<bool>* cancelled);

  const Options options_;
  std::atomic<bool> stopping_{false};
  // The thread's of `queue_`.
  absl::Duration allowance_;  // less than none where a compilation took more
  absl::Time allowance_time_ = absl::Now();
  // What was made last. The idle thread may be stopped inside an allocation, and who then frees
  // memory of its part of the heap waits for it: so others copy what it has made, and it alone
  // deletes it.
  absl::optional<absl::StatusOr<Compiled>> made_;
  IdleThread idle_;  // of the one thread of `queue_`
  TextPool queue_;
};

}  // namespace pagoda::daemon
