#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/culprit_search.h"
#include "engine/metrics.h"
#include "engine/quarantine.h"
#include "engine/request_table.h"
#include "engine/restart_budget.h"
#include "engine/scheduled_step.h"
#include "engine/scheduler.h"
#include "engine/step_applier.h"
#include "parallel/step_pipe.h"

namespace pagoda::engine {

// Brings the engine over the loss of its workers: everything that ran is to be computed again, from
// the tokens that the host knows, by new workers. A request that makes workers fail is searched for
// (CulpritSearch), ended with INTERNAL and quarantined. Workers that fail too often end the engine.
// Engine thread only.
class Recovery {
 public:
  struct Options {
    uint32_t max_restarts = 0;  // within the window; 0: the first loss ends the engine
    int64_t window_ns = 0;
    std::string log_prefix;
  };
  // All outlive this.
  struct Parts {
    parallel::StepPipe* pipe;
    Scheduler* scheduler;
    RequestTable* requests;
    StepApplier* applier;
    Quarantine* quarantine;
    EngineMetrics* metrics;
  };
  Recovery(const Options& options, const Parts& parts)
      : parts_(parts),
        budget_(options.max_restarts, options.window_ns),
        log_prefix_(options.log_prefix) {}

  // The workers are lost, with these steps in flight. Nothing is in flight any more then, and
  // everybody who ran waits.
  void Begin(const parallel::WorkerFailure& failure,
             absl::Span<const ScheduledStep* const> in_flight,
             int64_t now_ns);
  // After Begin. OK: the workers are being replaced. Else why the engine has to end.
  absl::Status Restart(const parallel::WorkerFailure& failure, int64_t now_ns);
  // Gives away, oldest first, the requests that may go on with other workers: those that are not
  // suspected of having made these fail. REQUIRES: nothing is in flight.
  std::vector<std::unique_ptr<LiveRequest>> TakeInnocent();
  // Nobody waits for the workers any more, so that the time until they are back is no pause.
  void ForgetPause() { lost_ns_ = 0; }
  // A result has come.
  void NoteResult(int64_t now_ns);
  // Lets those run whose turn has come. Before every plan.
  void Settle() {
    if (search_.is_active()) TryNextGroup();
  }
  // A request that comes now; another waits for the end of a search.
  bool MayRun(const LiveRequest& live) const { return search_.MayRun(live.request.key); }
  bool is_searching() const { return search_.is_active(); }
  // Sequences of the request that are to be scheduled join the queue.
  void Enqueue(LiveRequest* live);

 private:
  // Where each sequence of a suspect was in the step that failed.
  struct Target {
    const Sequence* sequence;
    int32_t num_confirmed;  // having so many, it has got past it
  };
  using Targets = std::vector<Target>;

  void Blame(absl::Span<const ScheduledStep* const> in_flight, int64_t now_ns);
  void EndCulprit(RequestKey key, int64_t now_ns);
  void TryNextGroup();
  bool HasPassed(RequestKey key);
  void Withdraw(LiveRequest* live);
  int64_t BackoffNs(const parallel::WorkerFailure& failure);

  const Parts parts_;
  RestartBudget budget_;
  const std::string log_prefix_;
  CulpritSearch search_;
  absl::flat_hash_map<RequestKey, Targets> targets_;
  int64_t lost_ns_ = 0;  // since when no result has come; 0: all is well
  // Restarts of culprits that were found; forgiven once others go on without them.
  int num_explained_restarts_ = 0;
  int num_failed_starts_ = 0;  // in a row
  size_t num_recovered_ = 0;   // sequences that the last loss sent back to the queue
};

}  // namespace pagoda::engine
