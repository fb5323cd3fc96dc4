#include "engine/recovery.h"

#include <algorithm>

#include "engine/errors.h"
#include "kernels/base/log.h"

namespace pagoda::engine {
namespace {

using parallel::WorkerFailure;

// After a start that failed, the next waits: 0.1 s, 0.2 s, ... up to 5 s.
constexpr int64_t kFirstBackoffNs = 100'000'000;
constexpr int64_t kMaxBackoffNs = 5'000'000'000;

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

size_t NumRows(absl::Span<const ScheduledStep* const> in_flight) {
  return in_flight.empty() ? 0 : in_flight.front()->rows.size();
}

}  // namespace

static_assert(parallel::kNumWorkerFailureCauses == kNumRestartCauses);

void Recovery::Begin(const WorkerFailure& failure,
                     absl::Span<const ScheduledStep* const> in_flight,
                     int64_t now_ns) {
  LogWarning("%sworkers lost (%s): rank %d, operation %s, step %d of %d rows: %s",
             log_prefix_,
             parallel::WorkerFailureCauseName(failure.cause),
             failure.rank,
             failure.operation,
             failure.step_id,
             NumRows(in_flight),
             failure.status.message());
  if (failure.MayBlameRows()) Blame(in_flight, now_ns);

  Scheduler& scheduler = *parts_.scheduler;
  for (const ScheduledStep* step : in_flight) {
    for (const ScheduledRow& row : step->rows) scheduler.AbandonRow(row);
  }
  num_recovered_ = scheduler.StartOver();
  parts_.requests->ForgetRetired(now_ns);
  for (LiveRequest* live : parts_.requests->All()) {
    MayRun(*live) ? Enqueue(live) : Withdraw(live);
  }
}

absl::Status Recovery::Restart(const WorkerFailure& failure, int64_t now_ns) {
  if (!budget_.Take(now_ns)) {
    return TooManyRestartsError(budget_.max_restarts(), budget_.window_ns(), failure.status);
  }
  if (lost_ns_ == 0) lost_ns_ = now_ns;
  parts_.metrics->worker_restarts[static_cast<size_t>(failure.cause)].Add(1);
  parts_.metrics->recovered_sequences.Add(num_recovered_);
  parts_.pipe->Restart(now_ns + BackoffNs(failure));
  LogInfo("%sworkers are replaced (restart %d of %d in %.0f s); %d sequences go on then",
          log_prefix_,
          budget_.num_taken(),
          budget_.max_restarts(),
          Seconds(budget_.window_ns()),
          num_recovered_);
  return absl::OkStatus();
}

std::vector<std::unique_ptr<LiveRequest>> Recovery::TakeInnocent() {
  std::vector<std::unique_ptr<LiveRequest>> taken;
  for (LiveRequest* live : parts_.requests->All()) {
    if (live->has_ended() || search_.IsSuspect(live->request.key)) continue;
    Withdraw(live);
    // Of this engine's queue; the next has its own.
    for (Sequence& sequence : live->sequences) sequence.tenant = nullptr;
    taken.push_back(parts_.requests->Remove(live));
  }
  std::sort(taken.begin(), taken.end(), [](const auto& a, const auto& b) {
    return a->sequences[0].order < b->sequences[0].order;
  });
  return taken;
}

int64_t Recovery::BackoffNs(const WorkerFailure& failure) {
  if (failure.cause != WorkerFailure::Cause::kStart) {
    num_failed_starts_ = 0;
    return 0;
  }
  const int64_t backoff_ns = kFirstBackoffNs << std::min(num_failed_starts_++, 10);
  return std::min(backoff_ns, kMaxBackoffNs);
}

void Recovery::Blame(absl::Span<const ScheduledStep* const> in_flight, int64_t now_ns) {
  std::vector<RequestKey> suspects;
  absl::flat_hash_map<RequestKey, Targets> targets;
  for (const ScheduledStep* step : in_flight) {
    for (const ScheduledRow& row : step->rows) {
      const Sequence& sequence = *row.sequence;
      if (sequence.num_rows_in_flight == 0) continue;
      // It may have been the last row of one that has ended meanwhile, which will not come again.
      if (sequence.state == SequenceState::kEnded) return;
      if (targets.count(sequence.key) == 0) suspects.push_back(sequence.key);
      targets[sequence.key].push_back(
          {.sequence = &sequence, .num_confirmed = row.computed_end - row.num_drafts});
    }
  }
  for (auto& [key, of_key] : targets) targets_[key] = std::move(of_key);
  if (const auto culprit = search_.Fail(suspects)) {
    num_explained_restarts_ += search_.num_explained();
    EndCulprit(*culprit, now_ns);
  }
  if (!search_.is_active()) targets_.clear();
}

void Recovery::EndCulprit(RequestKey key, int64_t now_ns) {
  LiveRequest* const live = parts_.requests->Find(key);
  if (live == nullptr || live->has_ended()) return;
  LogError("request %d makes workers fail; it is ended and its prompt refused for %.0f s",
           key.value(),
           Seconds(Quarantine::kDurationNs));
  parts_.quarantine->Add(live->request.prompt, now_ns);
  parts_.metrics->quarantined_requests.Add(1);
  parts_.applier->Abort(live, FinishReason::kError, WorkerCulpritError(), now_ns);
}

void Recovery::NoteResult(int64_t now_ns) {
  if (num_explained_restarts_ > 0) {
    budget_.Forgive(static_cast<size_t>(num_explained_restarts_));
    num_explained_restarts_ = 0;
  }
  if (lost_ns_ == 0) return;
  const int64_t pause_ns = now_ns - lost_ns_;
  lost_ns_ = 0;
  num_failed_starts_ = 0;
  parts_.metrics->recovery_seconds.ObserveNs(pause_ns);
  LogInfo("%sworkers are back, %.3f s after they were lost", log_prefix_, Seconds(pause_ns));
}

// ---- The search

bool Recovery::HasPassed(RequestKey key) {
  const LiveRequest* const live = parts_.requests->Find(key);
  if (live == nullptr || live->has_ended()) return true;
  Targets& targets = targets_[key];
  const auto has_passed = [](const Target& target) {
    // A beam that others have replaced had got past it.
    const bool is_replaced =
        target.sequence->is_beam && target.sequence->state == SequenceState::kIdle;
    return is_replaced || target.sequence->state == SequenceState::kEnded ||
           target.sequence->num_confirmed >= target.num_confirmed;
  };
  targets.erase(std::remove_if(targets.begin(), targets.end(), has_passed), targets.end());
  return targets.empty();
}

void Recovery::TryNextGroup() {
  while (search_.is_active()) {
    bool is_over = false;
    const std::vector<RequestKey> group = search_.group();
    for (const RequestKey key : group) {
      if (HasPassed(key)) is_over |= search_.Pass(key);
    }
    if (!is_over) return;
    for (LiveRequest* live : parts_.requests->All()) {
      if (MayRun(*live)) Enqueue(live);
    }
  }
  targets_.clear();
}

void Recovery::Enqueue(LiveRequest* live) {
  for (Sequence& sequence : live->sequences) {
    const bool may_begin = sequence.is_beam ? live->beams->is_open(sequence.index)
                                            : sequence.index == 0 || live->prompt_is_done;
    if (may_begin && sequence.state == SequenceState::kIdle) parts_.scheduler->Enqueue(&sequence);
  }
}

void Recovery::Withdraw(LiveRequest* live) {
  for (Sequence& sequence : live->sequences) {
    if (sequence.state == SequenceState::kWaiting) parts_.scheduler->Withdraw(&sequence);
  }
}

}  // namespace pagoda::engine
