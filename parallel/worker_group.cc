#include "parallel/worker_group.h"

#include <algorithm>
#include <limits>
#include <signal.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/base/device_fault.h"
#include "kernels/base/status_macros.h"
#include "parallel/rank_sums.h"
#include "parallel/shm_group.h"
#include "parallel/unique_fd.h"

namespace pagoda::parallel {
namespace {

using internal::v1::DeviceWork;
using internal::v1::LoadModel;
using internal::v1::LoadProgress;
using internal::v1::OpenWorker;
using internal::v1::StepPlan;
using internal::v1::StepResult;
using internal::v1::WorkerError;
using internal::v1::WorkerRequest;
using Cause = WorkerFailure::Cause;

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000 * kMillisecond;
constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

// A driver may take a minute to come up after boot.
constexpr int64_t kOpenTimeoutNs = 120 * kSecond;
// Between two signs of life while a model loads; the longest silence is warming up a device.
constexpr int64_t kLoadSilenceNs = 600 * kSecond;
// A worker that a signal stops while it starts: how often that is looked for, and how long it may
// be so (under a debugger, say).
constexpr int64_t kStoppedLookNs = kSecond;
constexpr int64_t kStoppedLookWhenReadyNs = kSecond / 2;
constexpr int64_t kStoppedLimitNs = 10 * kSecond;
// For a worker that closed its channel or said why it fails to be gone, and after Shutdown.
constexpr int64_t kExitTimeoutNs = 2 * kSecond;

absl::string_view OperationOf(WorkerGroup::Phase phase, bool has_steps) {
  if (phase == WorkerGroup::Phase::kReady) return has_steps ? "step" : "wait";
  return phase == WorkerGroup::Phase::kLoading ? "load" : "open";
}

absl::string_view TaskOf(WorkerGroup::Phase phase) {
  return phase == WorkerGroup::Phase::kLoading ? "load the model" : "open its device";
}

}  // namespace

WorkerGroup::~WorkerGroup() { Kill(); }

std::string WorkerGroup::NameOf(const Rank& rank) {
  return absl::StrFormat("worker %d (pid %d)", rank.index, rank.process->pid());
}

// ---- Start

absl::Status WorkerGroup::StartRank(int index) {
  if (options_.num_ranks > 1 && index == 0) {
    PAGODA_ASSIGN_OR_RETURN(group_memory_, MakeShmGroupMemory(options_.num_ranks));
  }
  Rank rank;
  rank.index = index;
  rank.silent_since_ns = options_.clock->NowNs();
  PAGODA_ASSIGN_OR_RETURN(rank.process,
                          WorkerProcess::Start(options_.worker_command, group_memory_.get()));
  rank.channel = std::make_unique<FrameChannel>(rank.process->TakeChannel());
  ranks_.push_back(std::move(rank));
  return absl::OkStatus();
}

absl::Status WorkerGroup::Open() {
  PAGODA_CHECK(ranks_.empty());
  for (int i = 0; i < options_.num_ranks; ++i) {
    const absl::Status status = StartRank(i);
    if (status.ok()) continue;
    failure_ = {.cause = Cause::kStart, .rank = i, .operation = "open"};
    failure_->status = status;
    return status;
  }
  for (Rank& rank : ranks_) {
    WorkerRequest request;
    OpenWorker* open = request.mutable_open();
    *open->mutable_config() = options_.config;
    open->set_tensor_rank(static_cast<uint32_t>(rank.index));
    open->set_tensor_ranks(static_cast<uint32_t>(options_.num_ranks));
    open->set_start(start_);
    const absl::Status status = rank.channel->Send(request);
    if (!status.ok()) return Lost(rank, status);
  }
  return absl::OkStatus();
}

absl::Status WorkerGroup::Load(const LoadModel& load) {
  if (failure_.has_value()) return failure_->status;
  PAGODA_CHECK(phase_ == Phase::kOpen);
  phase_ = Phase::kLoading;
  WorkerRequest request;
  *request.mutable_load_model() = load;
  return SendToAll(request);
}

absl::Status WorkerGroup::SendToAll(const WorkerRequest& request) {
  const int64_t now_ns = options_.clock->NowNs();
  for (Rank& rank : ranks_) {
    rank.has_answered = false;
    rank.silent_since_ns = now_ns;
    const absl::Status status = rank.channel->Send(request);
    if (!status.ok()) return Lost(rank, status);
  }
  return absl::OkStatus();
}

absl::Status WorkerGroup::Advance(const WorkerPool::ProgressFn& progress) {
  if (failure_.has_value()) return failure_->status;
  bool have_all_answered = true;
  for (Rank& rank : ranks_) {
    PAGODA_RETURN_IF_ERROR(AdvanceRank(rank, progress));
    have_all_answered &= rank.has_answered;
  }
  if (!have_all_answered) return absl::OkStatus();
  if (phase_ == Phase::kOpening) phase_ = Phase::kOpen;
  if (phase_ == Phase::kLoading) {
    phase_ = Phase::kReady;
    for (const Rank& rank : ranks_) AddReady(rank.ready, rank.index == 0, &ready_);
  }
  return absl::OkStatus();
}

absl::Status WorkerGroup::AdvanceRank(Rank& rank, const WorkerPool::ProgressFn& progress) {
  while (true) {
    absl::Status status = rank.channel->Flush();
    if (!status.ok()) return Lost(rank, status);
    const absl::StatusOr<bool> received = rank.channel->Receive(&response_);
    if (!received.ok()) return Lost(rank, received.status());
    if (!*received) break;
    rank.silent_since_ns = options_.clock->NowNs();
    PAGODA_RETURN_IF_ERROR(TakeStartMessage(rank, progress));
  }
  // A dead worker ends the channel; a descriptor that it left to somebody would keep it open.
  if (rank.has_ended) return Lost(rank, absl::UnavailableError("it has ended"));
  PAGODA_RETURN_IF_ERROR(CheckNotStopped(rank));
  const bool is_late =
      options_.clock->NowNs() - rank.silent_since_ns >= SilenceLimitNs() && !rank.has_answered;
  return is_late ? Silent(rank) : absl::OkStatus();
}

absl::Status WorkerGroup::TakeStartMessage(Rank& rank, const WorkerPool::ProgressFn& progress) {
  if (response_.has_error()) return Failed(rank, response_.error());
  if (phase_ == Phase::kOpening && response_.has_hello() && !rank.has_answered) {
    rank.hello = response_.hello();
    AddHello(response_.hello(), rank.index == 0, &hello_);
    rank.has_answered = true;
    return absl::OkStatus();
  }
  if (phase_ == Phase::kLoading && response_.has_model_ready() && !rank.has_answered) {
    rank.ready = response_.model_ready();
    rank.has_answered = true;
    return absl::OkStatus();
  }
  if (phase_ == Phase::kLoading && response_.has_load_progress()) {
    rank.progress = response_.load_progress();
    LoadProgress sum;
    sum.set_phase(rank.progress.phase());
    for (const Rank& each : ranks_) {
      sum.set_bytes_done(sum.bytes_done() + each.progress.bytes_done());
      sum.set_bytes_total(sum.bytes_total() + each.progress.bytes_total());
    }
    if (progress) progress(sum);
    return absl::OkStatus();
  }
  return Fail(
      rank,
      Cause::kStart,
      absl::InternalError(absl::StrFormat(
          "%s answered \"%s\" with something else", NameOf(rank), OperationOf(phase_, false))));
}

int64_t WorkerGroup::SilenceLimitNs() const {
  return phase_ == Phase::kLoading ? kLoadSilenceNs : kOpenTimeoutNs;
}

absl::Status WorkerGroup::CheckNotStopped(Rank& rank) {
  const int64_t now_ns = options_.clock->NowNs();
  if (!rank.process->IsStopped()) {
    rank.stopped_since_ns = 0;
    return absl::OkStatus();
  }
  if (rank.stopped_since_ns == 0) rank.stopped_since_ns = now_ns;
  if (now_ns - rank.stopped_since_ns < kStoppedLimitNs) return absl::OkStatus();
  rank.process->Kill();
  return Fail(rank,
              Cause::kStart,
              absl::UnavailableError(
                  absl::StrFormat("%s was stopped by a signal for %d s, while it was to %s",
                                  NameOf(rank),
                                  kStoppedLimitNs / kSecond,
                                  TaskOf(phase_))));
}

void WorkerGroup::LookForStopped() {
  const int64_t now_ns = options_.clock->NowNs();
  if (now_ns < next_look_ns_) return;
  next_look_ns_ = now_ns + kStoppedLookWhenReadyNs;
  for (Rank& rank : ranks_) rank.stopped_since_ns = rank.process->IsStopped() ? now_ns : 0;
}

absl::Status WorkerGroup::Silent(Rank& rank) {
  rank.process->Kill();
  return Fail(
      rank,
      Cause::kStart,
      absl::DeadlineExceededError(absl::StrFormat(
          "%s did not %s within %d s", NameOf(rank), TaskOf(phase_), SilenceLimitNs() / kSecond)));
}

std::vector<WorkerPool::Device> WorkerGroup::devices() const {
  std::vector<WorkerPool::Device> devices;
  for (const Rank& rank : ranks_) devices.push_back({.hello = rank.hello, .ready = rank.ready});
  return devices;
}

// ---- Steps

absl::Status WorkerGroup::Submit(const StepPlan& plan) {
  if (failure_.has_value()) return failure_->status;
  Step step = {.id = plan.step_id(), .num_tokens = 0};
  for (const uint32_t num_tokens : plan.row_num_tokens()) step.num_tokens += num_tokens;
  for (Rank& rank : ranks_) {
    if (rank.steps.empty()) rank.oldest_since_ns = options_.clock->NowNs();
    rank.steps.push_back(step);
    // Lends the plan to the request: Send only reads it, so neither a copy nor a write happens.
    request_.unsafe_arena_set_allocated_step_plan(const_cast<StepPlan*>(&plan));
    const absl::Status status = rank.channel->Send(request_);
    request_.unsafe_arena_release_step_plan();
    if (!status.ok()) return Lost(rank, status);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> WorkerGroup::Poll(StepResult* result) {
  if (failure_.has_value()) return failure_->status;
  bool have_result = false;
  for (Rank& rank : ranks_) {
    PAGODA_ASSIGN_OR_RETURN(const bool taken, TakeResult(rank));
    if (taken && rank.index == 0) {
      result->Swap(response_.mutable_step_result());
      have_result = true;
    }
    if (!taken) PAGODA_RETURN_IF_ERROR(CheckStepLimit(rank));
  }
  if (have_result) TakeWork(result);
  LookForStopped();
  return have_result;
}

void WorkerGroup::TakeWork(StepResult* result) {
  result->clear_device_work();
  for (Rank& rank : ranks_) {
    result->add_device_work()->Swap(&rank.work);
    rank.work.Clear();
  }
}

absl::StatusOr<bool> WorkerGroup::TakeResult(Rank& rank) {
  if (const absl::Status status = rank.channel->Flush(); !status.ok()) return Lost(rank, status);
  const absl::StatusOr<bool> received = rank.channel->Receive(&response_);
  if (!received.ok()) return Lost(rank, received.status());
  if (!*received) {
    if (rank.has_ended) return Lost(rank, absl::UnavailableError("it has ended"));
    return false;
  }
  if (response_.has_error()) return Failed(rank, response_.error());
  if (!response_.has_step_result() || rank.steps.empty() ||
      response_.step_result().step_id() != rank.steps.front().id) {
    const std::string got =
        response_.has_step_result()
            ? absl::StrFormat("the result of step %d", response_.step_result().step_id())
            : "something else";
    return Fail(rank,
                Cause::kProtocol,
                absl::UnavailableError(
                    absl::StrFormat("%s answered with %s, expected the result of step %d",
                                    NameOf(rank),
                                    got,
                                    rank.steps.empty() ? 0 : rank.steps.front().id)));
  }
  for (const DeviceWork& work : response_.step_result().device_work()) AddWork(work, &rank.work);
  const int64_t now_ns = options_.clock->NowNs();
  if (rank.index == 0)
    watch_->Observe(rank.steps.front().num_tokens, now_ns - rank.oldest_since_ns);
  rank.oldest_since_ns = now_ns;
  rank.steps.pop_front();
  return true;
}

int64_t WorkerGroup::StepDeadlineNs(const Rank& rank) const {
  if (rank.steps.empty()) return kForever;
  const int64_t limit_ns = watch_->LimitNs(rank.steps.front().num_tokens);
  return limit_ns < kForever - rank.oldest_since_ns ? rank.oldest_since_ns + limit_ns : kForever;
}

WorkerGroup::Rank& WorkerGroup::FindCulprit(Rank& late) {
  if (ranks_.size() == 1) return late;
  for (Rank& rank : ranks_) {
    if (!rank.steps.empty() && rank.process->IsStopped()) return rank;
  }
  const absl::optional<int> last = FindLastRank(group_memory_, options_.num_ranks);
  if (!last.has_value()) return late;
  Rank& rank = ranks_[static_cast<size_t>(*last)];
  return rank.steps.empty() ? late : rank;
}

absl::Status WorkerGroup::CheckStepLimit(Rank& rank) {
  if (options_.clock->NowNs() < StepDeadlineNs(rank)) return absl::OkStatus();
  const int64_t limit_ns = watch_->LimitNs(rank.steps.front().num_tokens);
  const Rank& culprit = FindCulprit(rank);
  const bool is_stopped = culprit.process->IsStopped();
  if (!is_stopped) watch_->NoteGivenUp();
  return Fail(culprit,
              is_stopped ? Cause::kStopped : Cause::kStuck,
              absl::DeadlineExceededError(
                  absl::StrFormat("%s has not answered step %d for %d ms%s",
                                  NameOf(culprit),
                                  culprit.steps.front().id,
                                  limit_ns / kMillisecond,
                                  is_stopped ? " and was stopped by a signal" : "")));
}

bool WorkerGroup::Spin(int64_t duration_ns) { return ranks_.front().channel->Spin(duration_ns); }

// ---- Waiting

void WorkerGroup::AddPollEntries(std::vector<pollfd>* entries) const {
  for (const Rank& rank : ranks_) {
    entries->push_back(
        {.fd = rank.channel->fd(), .events = rank.channel->poll_events(), .revents = 0});
    entries->push_back({.fd = rank.process->pidfd(), .events = POLLIN, .revents = 0});
  }
}

void WorkerGroup::AddProcessPollEntries(std::vector<pollfd>* entries) const {
  for (const Rank& rank : ranks_) {
    if (rank.process->has_exited()) continue;
    entries->push_back({.fd = rank.process->pidfd(), .events = POLLIN, .revents = 0});
  }
}

void WorkerGroup::NotePolled(absl::Span<const pollfd> entries) {
  for (Rank& rank : ranks_) rank.has_ended = entries[2 * rank.index + 1].revents != 0;
}

int64_t WorkerGroup::deadline_ns() const {
  int64_t deadline_ns =
      phase_ == Phase::kReady ? kForever : options_.clock->NowNs() + kStoppedLookNs;
  for (const Rank& rank : ranks_) {
    if (phase_ == Phase::kReady) {
      deadline_ns = std::min(deadline_ns, StepDeadlineNs(rank));
    } else if (!rank.has_answered) {
      deadline_ns = std::min(deadline_ns, rank.silent_since_ns + SilenceLimitNs());
    }
  }
  return deadline_ns;
}

int64_t WorkerGroup::late_at_ns() const {
  int64_t late_at_ns = kForever;
  for (const Rank& rank : ranks_) {
    if (rank.stopped_since_ns != 0) return rank.stopped_since_ns;
    if (rank.steps.empty()) continue;
    const int64_t late_ns = watch_->LateNs(rank.steps.front().num_tokens);
    if (late_ns < kForever - rank.oldest_since_ns)
      late_at_ns = std::min(late_at_ns, rank.oldest_since_ns + late_ns);
  }
  return late_at_ns;
}

// ---- Ends

absl::Status WorkerGroup::Fail(const Rank& rank, Cause cause, absl::Status status) {
  if (failure_.has_value()) return failure_->status;
  const bool has_steps = !rank.steps.empty();
  failure_ = {.cause = phase_ == Phase::kReady ? cause : Cause::kStart,
              .rank = rank.index,
              .operation = OperationOf(phase_, has_steps),
              .step_id = has_steps ? rank.steps.front().id : 0,
              .status = std::move(status)};
  return failure_->status;
}

std::string WorkerGroup::ExitText(Rank& rank) {
  if (absl::optional<std::string> text = rank.process->WaitForExit(kExitTimeoutNs)) return *text;
  rank.process->Kill();
  rank.process->WaitForExit(kExitTimeoutNs);
  return "did not exit, so it was killed";
}

absl::Status WorkerGroup::Lost(Rank& rank, const absl::Status& cause) {
  // The worker's own words, if it had the time for some, are still in the channel.
  while (true) {
    const absl::StatusOr<bool> received = rank.channel->Receive(&response_);
    if (!received.ok() || !*received) break;
    if (response_.has_error()) return Failed(rank, response_.error());
  }
  if (absl::IsUnavailable(cause)) {
    const std::string text = absl::StrCat(NameOf(rank), " ", ExitText(rank));
    const bool was_killed = rank.process->exit_signal() == SIGKILL;
    return Fail(rank, was_killed ? Cause::kKilled : Cause::kCrashed, absl::UnavailableError(text));
  }
  // The worker lives, but nothing more can be said to it or be believed of it.
  rank.process->Kill();
  return Fail(rank,
              Cause::kProtocol,
              absl::UnavailableError(
                  absl::StrFormat("%s was given up: %s", NameOf(rank), cause.message())));
}

absl::optional<WorkerError> WorkerGroup::OtherWords(const Rank& rank, int* other) {
  for (Rank& each : ranks_) {
    if (each.index == rank.index) continue;
    while (true) {
      const absl::StatusOr<bool> received = each.channel->Receive(&response_);
      if (!received.ok() || !*received) break;
      const bool says_more =
          response_.has_error() &&
          response_.error().code() != static_cast<int32_t>(absl::StatusCode::kAborted);
      if (!says_more) continue;
      *other = each.index;
      return response_.error();
    }
  }
  return absl::nullopt;
}

absl::Status WorkerGroup::Failed(Rank& rank, const WorkerError& words) {
  const WorkerError error = words;  // NOLINT: may be response_'s, which changes below
  const auto code = static_cast<absl::StatusCode>(error.code());
  const absl::Status own(code == absl::StatusCode::kOk ? absl::StatusCode::kUnknown : code,
                         error.message());
  const std::string exit_text = ExitText(rank);
  if (code == absl::StatusCode::kAborted) {
    int other = 0;
    const absl::optional<WorkerError> more = OtherWords(rank, &other);
    if (more.has_value()) return Failed(ranks_[static_cast<size_t>(other)], *more);
  }
  // While starting, the words are about the model or the device; the process adds nothing to them.
  if (phase_ != Phase::kReady) {
    return Fail(
        rank, Cause::kStart, WithDeviceFault(own, static_cast<DeviceFault>(error.device_fault())));
  }
  const std::string step =
      error.step_id() == 0 ? "" : absl::StrFormat(" in step %d", error.step_id());
  return Fail(rank,
              Cause::kError,
              absl::UnavailableError(absl::StrFormat(
                  "%s failed%s: %s; it %s", NameOf(rank), step, own.ToString(), exit_text)));
}

void WorkerGroup::Kill() {
  for (Rank& rank : ranks_) rank.process->Kill();
}

void WorkerGroup::Stop() {
  WorkerRequest request;
  request.mutable_shutdown();
  for (Rank& rank : ranks_) {
    // A failed group's other workers may wait for the failed one, and one that loads does not
    // listen; only a kill is sure to end them.
    const bool listens = !failure_.has_value() && phase_ != Phase::kLoading;
    if (!listens || !rank.channel->Send(request).ok()) rank.process->Kill();
  }
  for (Rank& rank : ranks_) ExitText(rank);
}

bool WorkerGroup::HasEnded() {
  bool have_all_ended = true;
  for (Rank& rank : ranks_) have_all_ended &= rank.process->WaitForExit(0).has_value();
  return have_all_ended;
}

}  // namespace pagoda::parallel
