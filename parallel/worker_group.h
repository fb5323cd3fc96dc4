#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <poll.h>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "pagoda/internal/v1/worker.pb.h"
#include "parallel/frame_channel.h"
#include "parallel/step_watch.h"
#include "parallel/unique_fd.h"
#include "parallel/worker_pool.h"
#include "parallel/worker_process.h"

namespace pagoda::parallel {

// The worker processes of a pool from one start to their end. No call waits, but for the end of a
// worker that has closed its channel (two seconds at most). The first failure is final: every call
// returns it from then on. Engine thread only.
class WorkerGroup {
 public:
  enum class Phase { kOpening, kOpen, kLoading, kReady };

  // `options` and `watch` outlive this. `start` counts the groups of a pool, from 1.
  WorkerGroup(const WorkerPoolOptions* options, uint32_t start, StepWatch* watch)
      : options_(*options), start_(start), watch_(watch) {}
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;
  ~WorkerGroup();

  // Starts every process and tells it to open its device; the group is kOpening.
  absl::Status Open();
  // REQUIRES: kOpen. The group is kLoading.
  absl::Status Load(const internal::v1::LoadModel& load);
  // Takes what has come while the group is kOpening or kLoading.
  absl::Status Advance(const WorkerPool::ProgressFn& progress);
  Phase phase() const { return phase_; }
  // Of rank 0, but for memory: the least of any. From kOpen on.
  const internal::v1::WorkerHello& hello() const { return hello_; }
  // Sums over the ranks (the fewest blocks of any), once kReady.
  const internal::v1::ModelReady& ready() const { return ready_; }
  // Of each rank, once kReady.
  std::vector<WorkerPool::Device> devices() const;

  // REQUIRES of the next two: kReady.
  absl::Status Submit(const internal::v1::StepPlan& plan);
  // Takes a result from every rank that has one; true if rank 0 had.
  absl::StatusOr<bool> Poll(internal::v1::StepResult* result);
  // Busy-waits for a result, if one is under way: true if there may be news.
  bool Spin(int64_t duration_ns);
  bool has_steps() const { return !ranks_.empty() && !ranks_.front().steps.empty(); }

  // For poll(): every channel and every process, or alone the processes that are still there.
  void AddPollEntries(std::vector<pollfd>* entries) const;
  void AddProcessPollEntries(std::vector<pollfd>* entries) const;
  // What poll() found of them.
  void NotePolled(absl::Span<const pollfd> entries);
  // When Advance or Poll is to be called though nothing comes; INT64_MAX: never.
  int64_t deadline_ns() const;
  // As of StepPipe. REQUIRES: kReady.
  int64_t late_at_ns() const;

  const absl::optional<WorkerFailure>& failure() const { return failure_; }
  // Asks the workers to end if they still listen, waits for it, and kills those that do not.
  void Stop();
  void Kill();
  // Every process is gone, with all that it held.
  bool HasEnded();

 private:
  struct Step {
    uint64_t id;
    int64_t num_tokens;
  };
  struct Rank {
    int index = 0;
    std::unique_ptr<WorkerProcess> process;
    std::unique_ptr<FrameChannel> channel;
    // poll() saw the process end.
    bool has_ended = false;
    // It has answered the request of the phase, and the time since which it has said nothing.
    bool has_answered = false;
    int64_t silent_since_ns = 0;
    // A signal has stopped it since, as far as is known; 0: it runs.
    int64_t stopped_since_ns = 0;
    // Sent and not answered, oldest first, and since when the oldest has been running.
    std::deque<Step> steps;
    int64_t oldest_since_ns = 0;
    internal::v1::LoadProgress progress;
    internal::v1::WorkerHello hello;
    internal::v1::ModelReady ready;
    // Of results that the pool has not given on.
    internal::v1::DeviceWork work;
  };

  absl::Status StartRank(int index);
  // "worker 0 (pid 123)".
  static std::string NameOf(const Rank& rank);
  absl::Status SendToAll(const internal::v1::WorkerRequest& request);
  absl::Status AdvanceRank(Rank& rank, const WorkerPool::ProgressFn& progress);
  absl::Status TakeStartMessage(Rank& rank, const WorkerPool::ProgressFn& progress);
  int64_t SilenceLimitNs() const;
  absl::Status Silent(Rank& rank);
  absl::Status CheckNotStopped(Rank& rank);
  void LookForStopped();
  absl::StatusOr<bool> TakeResult(Rank& rank);
  // Gives on what every rank's device did.
  void TakeWork(internal::v1::StepResult* result);
  int64_t StepDeadlineNs(const Rank& rank) const;
  absl::Status CheckStepLimit(Rank& rank);
  // Of ranks that wait for each other in a step, the one for which they wait; else `late`.
  Rank& FindCulprit(Rank& late);

  // Makes `cause`, an error of a rank's channel, into the group's failure, with what is known of
  // the worker's end.
  absl::Status Lost(Rank& rank, const absl::Status& cause);
  absl::Status Failed(Rank& rank, const internal::v1::WorkerError& error);
  // The words of another rank that say more than that it gave up because others did.
  absl::optional<internal::v1::WorkerError> OtherWords(const Rank& rank, int* other);
  absl::Status Fail(const Rank& rank, WorkerFailure::Cause cause, absl::Status status);
  std::string ExitText(Rank& rank);

  const WorkerPoolOptions& options_;
  const uint32_t start_;
  StepWatch* const watch_;
  Phase phase_ = Phase::kOpening;
  UniqueFd group_memory_;  // of several ranks
  std::vector<Rank> ranks_;
  internal::v1::WorkerHello hello_;
  internal::v1::ModelReady ready_;
  absl::optional<WorkerFailure> failure_;
  int64_t next_look_ns_ = 0;  // for ranks that were stopped, between steps or in one
  internal::v1::WorkerRequest request_;
  internal::v1::WorkerResponse response_;
};

}  // namespace pagoda::parallel
