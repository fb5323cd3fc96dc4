// The engine thread: one round after another, and what belongs to a round.

#include <string>
#include <utility>

#include "engine/engine_impl.h"
#include "engine/errors.h"
#include "engine/step_metrics.h"
#include "kernels/base/check.h"
#include "kernels/base/log.h"

namespace pagoda::engine {

uint64_t Engine::Impl::ForgetPrefixes() {
  const uint64_t num_blocks = blocks_.ForgetContents();
  // What they publish from now on would continue what is forgotten.
  for (Sequence* sequence : scheduler_.running()) blocks_.Poison(sequence);
  for (size_t n = num_in_flight_; n > 0; --n) {
    for (const ScheduledRow& row : steps_[(next_step_id_ - n) % steps_.size()].rows)
      blocks_.Poison(row.sequence);
  }
  return num_blocks;
}

EngineState Engine::Impl::DescribeState() const {
  EngineState state = {.num_steps_in_flight = num_in_flight_,
                       .num_blocks = pool_.num_total(),
                       .num_used_blocks = pool_.num_used(),
                       .num_cached_blocks = pool_.num_cached(),
                       .num_free_blocks = pool_.num_free()};
  scheduler_.Describe(options_.clock->NowNs(), &state);
  return state;
}

absl::Status Engine::Impl::Run() {
  if (intake_.wake_fd() < 0) {
    return absl::ResourceExhaustedError(
        "no file descriptor is left for the queue of requests; expected a higher limit of open "
        "files (ulimit -n)");
  }
  absl::Status why;
  while (!StopIsAsked(&why)) {
    tasks_.RunAll();
    TakeIntake();
    SweepDeadlines(options_.clock->NowNs());
    absl::StatusOr<bool> applied = ApplyNextResult();
    absl::StatusOr<bool> planned = applied.ok() ? PlanAhead() : applied;
    const bool are_lost = !planned.ok();
    if (are_lost) {
      if (absl::Status over = Recover(planned.status()); !over.ok()) {
        LogError("%sengine: %s", options_.log_prefix, over.ToString());
        const absl::Status lost = WorkerLostError();
        has_workers_.store(false, std::memory_order_relaxed);
        intake_.End(lost);
        TakeIntake();
        GiveAway();
        EndAll(lost);
        return over;
      }
    }
    const bool is_ready = options_.pipe->is_ready();
    if (!is_ready) GiveAway();
    // Whoever comes during a search would wait for its end.
    has_workers_.store(is_ready && !recovery_.is_searching(), std::memory_order_relaxed);
    late_at_ns_.store(options_.pipe->late_at_ns(), std::memory_order_relaxed);
    SetGauges(scheduler_, pool_, options_.metrics);
    Deliver();
    DeliverBlocks();
    if (are_lost || *applied || *planned) continue;
    options_.pipe->Wait(intake_.wake_fd(), requests_.next_deadline_ns());
  }
  EndAll(why);
  return absl::OkStatus();
}

bool Engine::Impl::StopIsAsked(absl::Status* why) const {
  MutexLock lock(&stop_mutex_);
  if (!stop_.has_value()) return false;
  *why = *stop_;
  return true;
}

void Engine::Impl::TakeIntake() {
  intake_.Take(&batch_);
  for (std::unique_ptr<LiveRequest>& live : batch_.requests) Accept(std::move(live));
  const int64_t now_ns = batch_.cancellations.empty() ? 0 : options_.clock->NowNs();
  for (const Intake::Cancellation& cancellation : batch_.cancellations) {
    LiveRequest* const live = requests_.Find(cancellation.key);
    if (live == nullptr && options_.peers != nullptr)
      options_.peers->ForwardCancel(cancellation.key);
    if (live == nullptr || live->has_ended()) continue;
    live->cancelled_ns = cancellation.requested_ns;
    applier_.Abort(live, FinishReason::kCancelled, RequestCancelledError(), now_ns);
  }
  batch_.requests.clear();
  batch_.cancellations.clear();
}

void Engine::Impl::Accept(std::unique_ptr<LiveRequest> added) {
  LiveRequest* const live = requests_.Add(std::move(added));
  const bool is_adopted = live->sequences[0].order.arrival != 0;
  if (is_adopted) {
    if (recovery_.MayRun(*live)) recovery_.Enqueue(live);
    return;
  }
  const uint64_t arrival = group_.next_arrival.fetch_add(1, std::memory_order_relaxed);
  for (Sequence& sequence : live->sequences) {
    sequence.order = {.priority = scheduler_.options().by_priority ? live->request.priority : 0,
                      .arrival = arrival,
                      .index = sequence.index};
  }
  // Its siblings follow when the prompt has been computed.
  if (recovery_.MayRun(*live)) scheduler_.Enqueue(&live->sequences[0]);
}

void Engine::Impl::SweepDeadlines(int64_t now_ns) {
  while (LiveRequest* const live = requests_.TakeExpired(now_ns)) {
    if (live->has_ended()) continue;
    applier_.Abort(live,
                   FinishReason::kDeadline,
                   DeadlinePassedError(now_ns - live->request.arrival_ns),
                   now_ns);
  }
  ForgetCompleted();
}

absl::StatusOr<bool> Engine::Impl::ApplyNextResult() {
  // Also with no step in flight: the end of an idle worker is known by no other sign.
  const absl::StatusOr<bool> polled = options_.pipe->Poll(&result_);
  if (!polled.ok() || !*polled) return polled;
  if (num_in_flight_ == 0) {
    return bad_result_ = BadStepResultError(next_step_id_, "number of results", 1, 0);
  }
  const int64_t now_ns = options_.clock->NowNs();
  const ScheduledStep& step = steps_[(next_step_id_ - num_in_flight_) % steps_.size()];
  bad_result_ = applier_.Apply(step, result_, now_ns);
  if (!bad_result_.ok()) return bad_result_;
  --num_in_flight_;
  recovery_.NoteResult(now_ns);
  CountStep(step, result_, options_.metrics);
  ForgetCompleted();
  requests_.ForgetRetired(now_ns);
  return true;
}

absl::StatusOr<bool> Engine::Impl::PlanAhead() {
  bool has_progressed = false;
  recovery_.Settle();
  if (!options_.pipe->is_ready()) return false;
  while (num_in_flight_ < max_steps_in_flight_) {
    ScheduledStep& step = steps_[next_step_id_ % steps_.size()];
    scheduler_.Schedule(&step);
    CountDecisions(step, options_.metrics);
    const int64_t now_ns = options_.clock->NowNs();
    for (Sequence* sequence : step.exhausted) {
      if (sequence->state == SequenceState::kEnded) continue;
      applier_.EndExhausted(sequence, now_ns);
      has_progressed = true;
    }
    if (step.empty()) {
      const bool is_stuck =
          step.exhausted.empty() && num_in_flight_ == 0 && scheduler_.Oldest() != nullptr;
      if (is_stuck) FailOldest();
      has_progressed |= is_stuck;
      break;
    }
    step.id = StepId(next_step_id_);
    NoteAdmissions(step, now_ns);
    // In flight also if sending fails: the scheduler counts on it.
    ++next_step_id_;
    ++num_in_flight_;
    const absl::Status status = options_.pipe->Submit(builder_.Build(step));
    if (!status.ok()) return status;
    has_progressed = true;
  }
  ForgetCompleted();
  return has_progressed;
}

absl::Status Engine::Impl::Recover(const absl::Status& failure) {
  std::vector<const ScheduledStep*> in_flight;
  for (size_t n = num_in_flight_; n > 0; --n) {
    in_flight.push_back(&steps_[(next_step_id_ - n) % steps_.size()]);
  }
  parallel::WorkerFailure lost = {.cause = parallel::WorkerFailure::Cause::kProtocol,
                                  .operation = "result",
                                  .step_id = next_step_id_ - num_in_flight_,
                                  .status = bad_result_};
  if (bad_result_.ok()) lost = options_.pipe->failure();
  bad_result_ = absl::OkStatus();
  const int64_t now_ns = options_.clock->NowNs();
  recovery_.Begin(lost, in_flight, now_ns);
  num_in_flight_ = 0;
  next_step_id_ = 1;
  ForgetCompleted();
  if (options_.peers != nullptr) options_.peers->NoteLoss();
  if (options_.config.max_worker_restarts() == 0) return failure;
  return recovery_.Restart(lost, now_ns);
}

void Engine::Impl::GiveAway() {
  if (options_.peers == nullptr) return;
  if (requests_.empty()) return recovery_.ForgetPause();
  if (!options_.peers->CanTakeOver()) return;
  // What a request has got here comes before what it gets elsewhere.
  Deliver();
  std::vector<std::unique_ptr<LiveRequest>> requests = recovery_.TakeInnocent();
  const size_t num_given = requests.size();
  const int64_t now_ns = options_.clock->NowNs();
  for (const auto& live : requests) {
    if (live->scheduled_ns == 0) {
      intake_.Leave(Intake::LoadOf(live->request), Intake::ArrivalOf(live->request, now_ns));
    }
  }
  options_.peers->TakeOver(&requests);
  num_live_.fetch_sub(static_cast<int32_t>(num_given - requests.size()), std::memory_order_relaxed);
  options_.metrics->requests_given_away.Add(num_given - requests.size());
  for (std::unique_ptr<LiveRequest>& live : requests) {
    if (live->scheduled_ns == 0) {
      intake_.Return(Intake::LoadOf(live->request), Intake::ArrivalOf(live->request, now_ns));
    }
    Accept(std::move(live));
  }
  if (num_given > requests.size())
    LogInfo(
        "%s%d requests go on with other workers", options_.log_prefix, num_given - requests.size());
  if (requests_.empty()) recovery_.ForgetPause();
}

void Engine::Impl::NoteAdmissions(const ScheduledStep& step, int64_t now_ns) {
  for (const Admission& admission : step.admitted) {
    LiveRequest* const live = admission.sequence->request;
    if (live->scheduled_ns != 0) continue;
    live->scheduled_ns = now_ns;
    intake_.Leave(Intake::LoadOf(live->request), Intake::ArrivalOf(live->request, now_ns));
  }
}

void Engine::Impl::FailOldest() {
  LiveRequest* const live = scheduler_.Oldest()->request;
  const absl::Status status = NoProgressError(pool_.num_available(), pool_.num_total());
  LogError("engine: %s", status.ToString());
  applier_.Abort(live, FinishReason::kError, status, options_.clock->NowNs());
}

void Engine::Impl::ForgetCompleted() {
  if (outputs_.completed().empty()) return;
  for (LiveRequest* live : outputs_.completed()) {
    if (live->scheduled_ns == 0) {
      intake_.Leave(Intake::LoadOf(live->request),
                    Intake::ArrivalOf(live->request, options_.clock->NowNs()));
    }
    requests_.Complete(live);
    num_live_.fetch_sub(1, std::memory_order_relaxed);
  }
  outputs_.completed().clear();
  requests_.ForgetRetired(options_.clock->NowNs());
}

void Engine::Impl::Deliver() {
  if (!outputs_.empty()) options_.sink->Deliver(outputs_.Take());
}

void Engine::Impl::SwitchBlockWatch(uint64_t watch) {
  block_events_ = {.watch = watch, .block_size = options_.config.block_size()};
  pool_.set_events(watch == 0 ? nullptr : &block_events_);
  if (watch == 0) return;
  pool_.SettleEvents();
  block_events_.events.clear();
  block_events_.tokens.clear();
  block_events_.AddCleared();
  pool_.AppendAll(&block_events_);
}

void Engine::Impl::DeliverBlocks() {
  const uint64_t wanted = wanted_watch_.load(std::memory_order_acquire);
  if (wanted != block_events_.watch) SwitchBlockWatch(wanted);
  if (wanted == 0) return;
  pool_.SettleEvents();
  if (block_events_.empty()) return;
  BlockEvents delivered = {.watch = wanted, .block_size = block_events_.block_size};
  delivered.events.swap(block_events_.events);
  delivered.tokens.swap(block_events_.tokens);
  options_.block_sink->DeliverBlocks(std::move(delivered));
}

void Engine::Impl::EndAll(const absl::Status& status) {
  tasks_.Close();
  intake_.End(status);
  has_workers_.store(false, std::memory_order_relaxed);
  TakeIntake();
  const int64_t now_ns = options_.clock->NowNs();
  for (LiveRequest* live : requests_.All()) {
    if (!live->has_ended()) applier_.Abort(live, FinishReason::kError, status, now_ns);
  }
  ForgetCompleted();
  SetGauges(scheduler_, pool_, options_.metrics);
  Deliver();
}

}  // namespace pagoda::engine
