#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "engine/engine.h"
#include "engine/errors.h"
#include "engine/guided_vocabulary.h"
#include "engine/intake.h"
#include "engine/kv/block_pool.h"
#include "engine/output_batch.h"
#include "engine/recovery.h"
#include "engine/request_table.h"
#include "engine/scheduled_step.h"
#include "engine/scheduler.h"
#include "engine/sequence_blocks.h"
#include "engine/step_applier.h"
#include "engine/step_builder.h"
#include "engine/task_queue.h"
#include "kernels/base/mutex.h"

namespace pagoda::engine {

// What any thread calls is in engine.cc, what the engine thread does in engine_loop.cc.
class Engine::Impl {
 public:
  explicit Impl(EngineOptions options);

  absl::Status TrySubmit(Request* request);
  bool Adopt(std::unique_ptr<LiveRequest>* request);
  void Cancel(RequestKey key) { intake_.Cancel(key, options_.clock->NowNs()); }
  absl::Status Run();
  void Drain() { intake_.Close(DrainingError()); }
  void Stop(const absl::Status& why);
  void WatchBlocks(uint64_t watch);
  bool FlushPrefixCache(std::function<void(uint64_t)> done);
  bool DumpState(std::function<void(EngineState)> done);
  int32_t num_live_requests() const { return num_live_.load(std::memory_order_relaxed); }
  bool has_workers() const { return has_workers_.load(std::memory_order_relaxed); }
  int64_t late_at_ns() const { return late_at_ns_.load(std::memory_order_relaxed); }

 private:
  absl::Status CheckFits(const Request& request) const;
  absl::Status CheckTrusted(const Request& request) const;
  // Has the engine thread run `task` at the begin of a round; false when there is none to come.
  bool Post(std::function<void()> task);

  // ---- Engine thread
  bool StopIsAsked(absl::Status* why) const;
  uint64_t ForgetPrefixes();
  EngineState DescribeState() const;
  void TakeIntake();
  void Accept(std::unique_ptr<LiveRequest> live);
  void SweepDeadlines(int64_t now_ns);
  // Applies the oldest result if it is there; true if it was.
  absl::StatusOr<bool> ApplyNextResult();
  // Plans and sends steps while fewer are in flight than may be; true if one was sent or a sequence
  // ended.
  absl::StatusOr<bool> PlanAhead();
  // After the workers failed: OK, and nothing is in flight, or why it is over.
  absl::Status Recover(const absl::Status& failure);
  // Peers take over what may go on with their workers. REQUIRES: nothing is in flight.
  void GiveAway();
  void NoteAdmissions(const ScheduledStep& step, int64_t now_ns);
  void FailOldest();
  void ForgetCompleted();
  void Deliver();
  void SwitchBlockWatch(uint64_t watch);
  void DeliverBlocks();
  void EndAll(const absl::Status& status);

  // ---- Constant after construction
  const EngineOptions options_;
  const size_t max_steps_in_flight_;

  // ---- Synchronises itself
  const std::unique_ptr<EngineGroup> own_group_;  // of an engine that is alone
  EngineGroup& group_;
  const GuidedVocabulary vocabulary_;
  Intake intake_;
  std::atomic<int32_t> num_live_{0};
  std::atomic<bool> has_workers_;
  std::atomic<int64_t> late_at_ns_{INT64_MAX};
  std::atomic<uint64_t> wanted_watch_{0};
  mutable Mutex stop_mutex_;
  absl::optional<absl::Status> stop_ ABSL_GUARDED_BY(stop_mutex_);
  TaskQueue tasks_;

  // ---- Engine thread only
  BlockPool pool_;
  SequenceBlocks blocks_;
  Scheduler scheduler_;
  OutputBatch outputs_;
  StepApplier applier_;
  StepBuilder builder_;
  Intake::Batch batch_;
  RequestTable requests_;
  Recovery recovery_;
  // A ring: the steps in flight are the last num_in_flight_ before next_step_id_, each at its id
  // modulo the size.
  std::vector<ScheduledStep> steps_;
  size_t num_in_flight_ = 0;
  uint64_t next_step_id_ = 1;
  absl::Status bad_result_;  // a result that does not answer its plan
  internal::v1::StepResult result_;
  BlockEvents block_events_;  // since they were delivered last; watch 0: nobody asks
};

}  // namespace pagoda::engine
