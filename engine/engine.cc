#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/errors.h"
#include "engine/guided_vocabulary.h"
#include "engine/intake.h"
#include "engine/kv/block_pool.h"
#include "engine/output_batch.h"
#include "engine/recovery.h"
#include "engine/request_table.h"
#include "engine/scheduler.h"
#include "engine/sequence_blocks.h"
#include "engine/step_applier.h"
#include "engine/step_builder.h"
#include "engine/step_metrics.h"
#include "engine/task_queue.h"
#include "kernels/base/check.h"
#include "kernels/base/log.h"

namespace pagoda::engine {
namespace {

SchedulerOptions SchedulerOptionsOf(const internal::v1::EngineConfig& config) {
  return {.max_num_seqs = static_cast<int32_t>(config.max_num_seqs()),
          .max_num_batched_tokens = static_cast<int32_t>(config.max_num_batched_tokens()),
          .max_prefill_chunk_tokens = static_cast<int32_t>(config.max_prefill_chunk_tokens()),
          .by_priority = config.policy() == internal::v1::SCHEDULING_POLICY_PRIORITY};
}

SequenceBlocks::Options BlockOptionsOf(const EngineOptions& options) {
  const internal::v1::EngineConfig& config = options.config;
  const int64_t max_tokens_in_flight = int64_t{config.max_num_batched_tokens()} *
                                       std::max<uint32_t>(config.max_steps_in_flight(), 1);
  return {.block_size = static_cast<int32_t>(config.block_size()),
          .prefix_caching = config.prefix_caching(),
          .window = options.kv_window,
          .max_tokens_in_flight =
              static_cast<int32_t>(std::min<int64_t>(max_tokens_in_flight, options.max_model_len))};
}

// Clamps a bound that may be any unsigned number to what sums of it can hold.
int64_t Bound(uint64_t limit) {
  return static_cast<int64_t>(std::min<uint64_t>(limit, std::numeric_limits<int64_t>::max() / 2));
}

}  // namespace

class Engine::Impl {
 public:
  explicit Impl(EngineOptions options);

  absl::Status TrySubmit(Request* request);
  bool Adopt(std::unique_ptr<LiveRequest>* request);
  void Cancel(RequestKey key) { intake_.Cancel(key, options_.clock->NowNs()); }
  absl::Status Run();
  void Drain() { intake_.Close(DrainingError()); }
  void Stop(absl::Status why);
  void WatchBlocks(uint64_t watch);
  bool FlushPrefixCache(std::function<void(uint64_t)> done);
  bool DumpState(std::function<void(EngineState)> done);
  int32_t num_live_requests() const { return num_live_.load(std::memory_order_relaxed); }
  bool has_workers() const { return has_workers_.load(std::memory_order_relaxed); }

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

Engine::Impl::Impl(EngineOptions options)
    : options_(std::move(options)),
      max_steps_in_flight_(std::max<uint32_t>(options_.config.max_steps_in_flight(), 1)),
      own_group_(options_.group == nullptr
                     ? std::make_unique<EngineGroup>(options_.config.prefix_hash_key())
                     : nullptr),
      group_(options_.group == nullptr ? *own_group_ : *options_.group),
      vocabulary_(options_.tokenizer, options_.vocab_size),
      intake_({.max_waiting_requests = Bound(options_.config.max_waiting_requests()),
               .max_waiting_tokens = Bound(options_.config.max_waiting_tokens())}),
      has_workers_(options_.pipe != nullptr && options_.pipe->is_ready()),
      pool_(static_cast<uint32_t>(options_.num_kv_blocks), options_.config.block_size()),
      blocks_(BlockOptionsOf(options_), &pool_, &group_.hasher),
      scheduler_(SchedulerOptionsOf(options_.config), &blocks_),
      outputs_(options_.metrics),
      applier_(&scheduler_, &blocks_, &outputs_, options_.metrics),
      builder_(options_.vocab_size, options_.tokenizer),
      requests_(options_.metrics),
      recovery_({.max_restarts = options_.config.max_worker_restarts(),
                 .window_ns = options_.config.worker_restart_window_ms() * int64_t{1'000'000},
                 .log_prefix = options_.log_prefix},
                {.pipe = options_.pipe,
                 .scheduler = &scheduler_,
                 .requests = &requests_,
                 .applier = &applier_,
                 .quarantine = &group_.quarantine,
                 .metrics = options_.metrics}),
      steps_(max_steps_in_flight_) {
  PAGODA_CHECK(options_.pipe != nullptr && options_.sink != nullptr &&
               options_.metrics != nullptr && options_.clock != nullptr &&
               options_.num_kv_blocks > 0 && options_.max_model_len > 0);
  builder_.set_vocabulary(&vocabulary_);
  SetGauges(scheduler_, pool_, options_.metrics);
}

// ---- Any thread

absl::Status Engine::Impl::CheckFits(const Request& request) const {
  const int64_t num_prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (num_prompt_tokens > options_.max_model_len) {
    return PromptExceedsContextError(num_prompt_tokens, options_.max_model_len);
  }
  const int64_t num_blocks = blocks_.NumHeldBlocks(static_cast<int32_t>(num_prompt_tokens));
  if (num_blocks > options_.num_kv_blocks) {
    return PromptExceedsPoolError(
        num_prompt_tokens, num_blocks, options_.config.block_size(), options_.num_kv_blocks);
  }
  const bool needs_tokenizer =
      !request.stop.stop_strings.empty() || request.sampling.constraint != nullptr;
  if (options_.tokenizer == nullptr && needs_tokenizer) return MissingTokenizerError();
  return absl::OkStatus();
}

absl::Status Engine::Impl::CheckTrusted(const Request& request) const {
  const bool is_held = group_.quarantine.Holds(request.prompt, options_.clock->NowNs());
  return is_held ? QuarantinedError() : absl::OkStatus();
}

absl::Status Engine::Impl::TrySubmit(Request* request) {
  PAGODA_CHECK(!request->prompt.empty());
  if (absl::Status status = CheckFits(*request); !status.ok()) return status;
  if (absl::Status status = CheckTrusted(*request); !status.ok()) return status;
  // Here rather than on the engine thread, which then finds it made.
  if (request->sampling.constraint != nullptr) vocabulary_.bytes();
  if (absl::Status status = intake_.Reserve(Intake::LoadOf(*request),
                                            Intake::ArrivalOf(*request, options_.clock->NowNs()));
      !status.ok()) {
    return status;
  }
  auto live = std::make_unique<LiveRequest>(
      std::move(*request), options_.max_model_len, options_.tokenizer);
  if (options_.config.prefix_caching()) {
    live->HashPrompt(group_.hasher, static_cast<int32_t>(options_.config.block_size()));
  }
  num_live_.fetch_add(1, std::memory_order_relaxed);
  absl::Status status = intake_.Push(&live);
  if (status.ok()) return status;
  num_live_.fetch_sub(1, std::memory_order_relaxed);
  *request = std::move(live->request);
  return status;
}

bool Engine::Impl::Adopt(std::unique_ptr<LiveRequest>* request) {
  if ((*request)->request.sampling.constraint != nullptr) vocabulary_.bytes();
  num_live_.fetch_add(1, std::memory_order_relaxed);
  const bool is_taken = intake_.PushAdopted(request, options_.clock->NowNs());
  if (!is_taken) num_live_.fetch_sub(1, std::memory_order_relaxed);
  return is_taken;
}

void Engine::Impl::Stop(absl::Status why) {
  {
    MutexLock lock(&stop_mutex_);
    if (!stop_.has_value()) stop_ = why.ok() ? StoppedError(why) : why;
  }
  intake_.Close(StoppedError(why));
}

void Engine::Impl::WatchBlocks(uint64_t watch) {
  PAGODA_CHECK(options_.block_sink != nullptr);
  wanted_watch_.store(watch, std::memory_order_release);
  intake_.Wake();
}

bool Engine::Impl::Post(std::function<void()> task) {
  const bool is_taken = tasks_.Post(std::move(task));
  intake_.Wake();
  return is_taken;
}

bool Engine::Impl::FlushPrefixCache(std::function<void(uint64_t)> done) {
  return Post([this, done = std::move(done)] { done(ForgetPrefixes()); });
}

bool Engine::Impl::DumpState(std::function<void(EngineState)> done) {
  return Post([this, done = std::move(done)] { done(DescribeState()); });
}

// ---- Engine thread

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

// ---- The public class

Engine::Engine(EngineOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Engine::~Engine() = default;

absl::Status Engine::Submit(Request request) { return impl_->TrySubmit(&request); }
absl::Status Engine::TrySubmit(Request* request) { return impl_->TrySubmit(request); }
bool Engine::Adopt(std::unique_ptr<LiveRequest>* request) { return impl_->Adopt(request); }
void Engine::Cancel(RequestKey key) { impl_->Cancel(key); }
absl::Status Engine::Run() { return impl_->Run(); }
void Engine::Drain() { impl_->Drain(); }
void Engine::WatchBlocks(uint64_t watch) { impl_->WatchBlocks(watch); }
bool Engine::FlushPrefixCache(std::function<void(uint64_t)> done) {
  return impl_->FlushPrefixCache(std::move(done));
}
bool Engine::DumpState(std::function<void(EngineState)> done) {
  return impl_->DumpState(std::move(done));
}
void Engine::Stop(absl::Status why) { impl_->Stop(std::move(why)); }
int32_t Engine::num_live_requests() const { return impl_->num_live_requests(); }
bool Engine::has_workers() const { return impl_->has_workers(); }

}  // namespace pagoda::engine
