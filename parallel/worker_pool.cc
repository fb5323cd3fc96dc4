#include "parallel/worker_pool.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <poll.h>
#include <time.h>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/base/device_fault.h"
#include "kernels/base/status_macros.h"
#include "parallel/frame_channel.h"
#include "parallel/spin_governor.h"
#include "parallel/worker_process.h"

namespace pagoda::parallel {
namespace {

using internal::v1::LoadModel;
using internal::v1::LoadProgress;
using internal::v1::ModelReady;
using internal::v1::OpenWorker;
using internal::v1::StepPlan;
using internal::v1::StepResult;
using internal::v1::WorkerError;
using internal::v1::WorkerHello;
using internal::v1::WorkerRequest;
using internal::v1::WorkerResponse;

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000 * kMillisecond;
constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

// A driver may take a minute to come up after boot.
constexpr int64_t kOpenTimeoutNs = 120 * kSecond;
// Between two signs of life while a model loads; the longest silence is warming up a device.
constexpr int64_t kLoadSilenceNs = 600 * kSecond;
// For a worker that closed its channel or said why it fails to be gone, and after Shutdown.
constexpr int64_t kExitTimeoutNs = 2 * kSecond;
// One worker as the pool sees it.
struct Rank {
  int index = 0;
  std::unique_ptr<WorkerProcess> process;
  std::unique_ptr<FrameChannel> channel;
  // Wait saw the process end.
  bool ended = false;
  // Steps sent and not answered, oldest first, and since when the oldest has been running.
  std::deque<uint64_t> steps;
  int64_t oldest_since_ns = 0;
};

class ProcessPool final : public WorkerPool {
 public:
  explicit ProcessPool(WorkerPoolOptions options)
      : clock_(*options.clock),
        step_timeout_ns_(options.config.engine().step_timeout_ms() * kMillisecond),
        options_(std::move(options)) {}
  ~ProcessPool() override { Stop(); }

  absl::Status Open();

  const WorkerHello& hello() const override { return hello_; }
  absl::StatusOr<ModelReady> Load(const LoadModel& load, const ProgressFn& progress) override;
  absl::Status Submit(const StepPlan& plan) override;
  absl::StatusOr<bool> Poll(StepResult* result) override;
  void Wait(int wake_fd, int64_t deadline_ns) override;
  void Stop() override;

 private:
  absl::Status SendOpen(Rank& rank);
  absl::StatusOr<ModelReady> AwaitModelReady(Rank& rank, const ProgressFn& progress);
  // Takes the next message of a rank, waiting for it; what a worker says of its failure becomes the
  // status.
  absl::Status Await(Rank& rank, int64_t silence_ns, absl::string_view what);
  // Takes one result of a rank into response_, if there is one.
  absl::StatusOr<bool> TakeResult(Rank& rank);
  absl::Status CheckStepTimeout(const Rank& rank) const;
  int64_t StepDeadlineNs() const;
  bool SpinForResult();

  // Makes `cause`, an error of a rank's channel, into the pool's failure, with what is known of the
  // worker's end.
  absl::Status Lost(Rank& rank, const absl::Status& cause);
  absl::Status Failed(Rank& rank, const WorkerError& error);
  absl::Status Fail(absl::Status status);
  std::string ExitText(Rank& rank);

  const Clock& clock_;
  const int64_t step_timeout_ns_;  // 0: none
  const WorkerPoolOptions options_;
  std::vector<Rank> ranks_;
  WorkerHello hello_;
  absl::Status failure_;
  bool serving_ = false;
  SpinGovernor spin_governor_;
  std::vector<LoadProgress> progress_;  // by rank
  WorkerRequest request_;
  WorkerResponse response_;
  std::vector<pollfd> poll_entries_;
};

std::string Name(const Rank& rank) {
  return absl::StrFormat("worker %d (pid %d)", rank.index, rank.process->pid());
}

absl::Status ProcessPool::Open() {
  for (int i = 0; i < options_.num_ranks; ++i) {
    Rank rank;
    rank.index = i;
    PAGODA_ASSIGN_OR_RETURN(rank.process, WorkerProcess::Start(options_.worker_command));
    rank.channel = std::make_unique<FrameChannel>(rank.process->TakeChannel());
    ranks_.push_back(std::move(rank));
  }
  for (Rank& rank : ranks_) PAGODA_RETURN_IF_ERROR(SendOpen(rank));
  for (Rank& rank : ranks_) {
    PAGODA_RETURN_IF_ERROR(Await(rank, kOpenTimeoutNs, "open its device"));
    if (!response_.has_hello()) {
      return Fail(absl::InternalError(Name(rank) + " did not answer with a hello"));
    }
    if (rank.index == 0) hello_ = response_.hello();
  }
  return absl::OkStatus();
}

absl::Status ProcessPool::SendOpen(Rank& rank) {
  WorkerRequest request;
  OpenWorker* open = request.mutable_open();
  *open->mutable_config() = options_.config;
  open->set_tensor_rank(static_cast<uint32_t>(rank.index));
  open->set_tensor_ranks(static_cast<uint32_t>(options_.num_ranks));
  const absl::Status status = rank.channel->Send(request);
  return status.ok() ? status : Lost(rank, status);
}

absl::StatusOr<ModelReady> ProcessPool::Load(const LoadModel& load, const ProgressFn& progress) {
  if (!failure_.ok()) return failure_;
  progress_.assign(ranks_.size(), LoadProgress());
  WorkerRequest request;
  *request.mutable_load_model() = load;
  for (Rank& rank : ranks_) {
    const absl::Status status = rank.channel->Send(request);
    if (!status.ok()) return Lost(rank, status);
  }
  ModelReady all;
  for (Rank& rank : ranks_) {
    PAGODA_ASSIGN_OR_RETURN(const ModelReady ready, AwaitModelReady(rank, progress));
    const bool first = rank.index == 0;
    all.set_weight_bytes(all.weight_bytes() + ready.weight_bytes());
    all.set_activation_bytes(all.activation_bytes() + ready.activation_bytes());
    all.set_kv_bytes(all.kv_bytes() + ready.kv_bytes());
    all.set_num_kv_blocks(first ? ready.num_kv_blocks()
                                : std::min(all.num_kv_blocks(), ready.num_kv_blocks()));
    all.set_taken_bytes(all.taken_bytes() + ready.taken_bytes());
    all.set_kept_free_bytes(all.kept_free_bytes() + ready.kept_free_bytes());
    all.set_read_seconds(std::max(all.read_seconds(), ready.read_seconds()));
    all.set_warmup_seconds(std::max(all.warmup_seconds(), ready.warmup_seconds()));
  }
  serving_ = true;
  return all;
}

absl::StatusOr<ModelReady> ProcessPool::AwaitModelReady(Rank& rank, const ProgressFn& progress) {
  while (true) {
    PAGODA_RETURN_IF_ERROR(Await(rank, kLoadSilenceNs, "load the model"));
    if (response_.has_model_ready()) return response_.model_ready();
    if (!response_.has_load_progress()) {
      return Fail(absl::InternalError(Name(rank) + " answered a load with something else"));
    }
    progress_[rank.index] = response_.load_progress();
    LoadProgress sum;
    sum.set_phase(response_.load_progress().phase());
    for (const LoadProgress& part : progress_) {
      sum.set_bytes_done(sum.bytes_done() + part.bytes_done());
      sum.set_bytes_total(sum.bytes_total() + part.bytes_total());
    }
    if (progress) progress(sum);
  }
}

absl::Status ProcessPool::Await(Rank& rank, int64_t silence_ns, absl::string_view what) {
  const int64_t end_ns = clock_.NowNs() + silence_ns;
  while (true) {
    absl::Status status = rank.channel->Flush();
    if (status.ok()) {
      const absl::StatusOr<bool> received = rank.channel->Receive(&response_);
      if (received.ok() && *received) {
        return response_.has_error() ? Failed(rank, response_.error()) : absl::OkStatus();
      }
      status = received.status();
    }
    if (!status.ok()) return Lost(rank, status);
    const int64_t left_ns = end_ns - clock_.NowNs();
    if (left_ns <= 0) {
      rank.process->Kill();
      return Fail(absl::DeadlineExceededError(
          absl::StrFormat("%s did not %s within %d s", Name(rank), what, silence_ns / kSecond)));
    }
    // A dead worker ends the channel; a descriptor that it left to somebody would keep it open, so
    // look at it as well.
    rank.channel->Wait(std::min(left_ns, kSecond));
    if (rank.process->WaitForExit(0).has_value()) {
      const absl::StatusOr<bool> last = rank.channel->Receive(&response_);
      if (!last.ok() || !*last) return Lost(rank, absl::UnavailableError("it has ended"));
      return response_.has_error() ? Failed(rank, response_.error()) : absl::OkStatus();
    }
  }
}

absl::Status ProcessPool::Submit(const StepPlan& plan) {
  if (!failure_.ok()) return failure_;
  for (Rank& rank : ranks_) {
    // Lends the plan to the request: Send only reads it, so neither a copy nor a write happens.
    request_.unsafe_arena_set_allocated_step_plan(const_cast<StepPlan*>(&plan));
    const absl::Status status = rank.channel->Send(request_);
    request_.unsafe_arena_release_step_plan();
    if (!status.ok()) return Lost(rank, status);
    if (rank.steps.empty()) rank.oldest_since_ns = clock_.NowNs();
    rank.steps.push_back(plan.step_id());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ProcessPool::Poll(StepResult* result) {
  if (!failure_.ok()) return failure_;
  bool have_result = false;
  for (Rank& rank : ranks_) {
    PAGODA_ASSIGN_OR_RETURN(const bool taken, TakeResult(rank));
    if (taken && rank.index == 0) {
      result->Swap(response_.mutable_step_result());
      have_result = true;
    }
    if (!taken) {
      if (absl::Status status = CheckStepTimeout(rank); !status.ok())
        return Fail(std::move(status));
    }
  }
  return have_result;
}

absl::StatusOr<bool> ProcessPool::TakeResult(Rank& rank) {
  if (const absl::Status status = rank.channel->Flush(); !status.ok()) return Lost(rank, status);
  const absl::StatusOr<bool> received = rank.channel->Receive(&response_);
  if (!received.ok()) return Lost(rank, received.status());
  if (!*received) {
    if (rank.ended) return Lost(rank, absl::UnavailableError("it has ended"));
    return false;
  }
  if (response_.has_error()) return Failed(rank, response_.error());
  if (!response_.has_step_result() || rank.steps.empty() ||
      response_.step_result().step_id() != rank.steps.front()) {
    return Fail(absl::UnavailableError(absl::StrFormat(
        "%s answered with %s, expected the result of step %d",
        Name(rank),
        response_.has_step_result()
            ? absl::StrFormat("the result of step %d", response_.step_result().step_id())
            : "something else",
        rank.steps.empty() ? 0 : rank.steps.front())));
  }
  rank.oldest_since_ns = clock_.NowNs();
  rank.steps.pop_front();
  return true;
}

absl::Status ProcessPool::CheckStepTimeout(const Rank& rank) const {
  if (step_timeout_ns_ == 0 || rank.steps.empty()) return absl::OkStatus();
  if (clock_.NowNs() - rank.oldest_since_ns < step_timeout_ns_) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrFormat("%s has not answered step %d for %d ms, the step timeout",
                      Name(rank),
                      rank.steps.front(),
                      step_timeout_ns_ / kMillisecond));
}

int64_t ProcessPool::StepDeadlineNs() const {
  int64_t deadline_ns = kForever;
  for (const Rank& rank : ranks_) {
    if (step_timeout_ns_ == 0 || rank.steps.empty()) continue;
    deadline_ns = std::min(deadline_ns, rank.oldest_since_ns + step_timeout_ns_);
  }
  return deadline_ns;
}

bool ProcessPool::SpinForResult() {
  Rank& first = ranks_.front();
  if (first.steps.empty() || !spin_governor_.ShouldSpin()) return false;
  const bool succeeded = first.channel->Spin(SpinGovernor::kSpinNs);
  spin_governor_.Report(succeeded);
  return succeeded;
}

void ProcessPool::Wait(int wake_fd, int64_t deadline_ns) {
  if (!failure_.ok() || SpinForResult()) return;
  poll_entries_.clear();
  poll_entries_.push_back({.fd = wake_fd, .events = POLLIN, .revents = 0});
  for (const Rank& rank : ranks_) {
    poll_entries_.push_back(
        {.fd = rank.channel->fd(), .events = rank.channel->poll_events(), .revents = 0});
    poll_entries_.push_back({.fd = rank.process->pidfd(), .events = POLLIN, .revents = 0});
  }
  const int64_t end_ns = std::min(deadline_ns, StepDeadlineNs());
  const int64_t left_ns = std::max<int64_t>(end_ns - clock_.NowNs(), 0);
  const timespec timeout{.tv_sec = left_ns / kSecond, .tv_nsec = left_ns % kSecond};
  ppoll(
      poll_entries_.data(), poll_entries_.size(), end_ns == kForever ? nullptr : &timeout, nullptr);
  for (Rank& rank : ranks_) rank.ended = poll_entries_[2 * rank.index + 2].revents != 0;
}

absl::Status ProcessPool::Fail(absl::Status status) {
  if (failure_.ok()) failure_ = std::move(status);
  return failure_;
}

std::string ProcessPool::ExitText(Rank& rank) {
  if (absl::optional<std::string> text = rank.process->WaitForExit(kExitTimeoutNs)) return *text;
  rank.process->Kill();
  rank.process->WaitForExit(kExitTimeoutNs);
  return "did not exit, so it was killed";
}

absl::Status ProcessPool::Lost(Rank& rank, const absl::Status& cause) {
  // The worker's own words, if it had the time for some, are still in the channel.
  while (true) {
    const absl::StatusOr<bool> received = rank.channel->Receive(&response_);
    if (!received.ok() || !*received) break;
    if (response_.has_error()) return Failed(rank, response_.error());
  }
  if (absl::IsUnavailable(cause)) {
    return Fail(absl::UnavailableError(absl::StrFormat("%s %s", Name(rank), ExitText(rank))));
  }
  // The worker lives, but nothing more can be said to it or be believed of it.
  rank.process->Kill();
  return Fail(
      absl::UnavailableError(absl::StrFormat("%s was given up: %s", Name(rank), cause.message())));
}

absl::Status ProcessPool::Failed(Rank& rank, const WorkerError& error) {
  const auto code = static_cast<absl::StatusCode>(error.code());
  const absl::Status own(code == absl::StatusCode::kOk ? absl::StatusCode::kUnknown : code,
                         error.message());
  // While starting, the words are about the model or the device; the process adds nothing to them.
  if (!serving_) {
    ExitText(rank);
    return Fail(WithDeviceFault(own, static_cast<DeviceFault>(error.device_fault())));
  }
  const std::string step =
      error.step_id() == 0 ? "" : absl::StrFormat(" in step %d", error.step_id());
  return Fail(absl::UnavailableError(
      absl::StrFormat("%s failed%s: %s; it %s", Name(rank), step, own.ToString(), ExitText(rank))));
}

void ProcessPool::Stop() {
  WorkerRequest request;
  request.mutable_shutdown();
  for (Rank& rank : ranks_) {
    // A failed pool's other workers may wait for the failed one; only a kill is sure to end them.
    if (!failure_.ok() || !rank.channel->Send(request).ok()) rank.process->Kill();
  }
  for (Rank& rank : ranks_) ExitText(rank);
  ranks_.clear();
  Fail(absl::UnavailableError("the worker pool has been stopped")).IgnoreError();
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerPool>> WorkerPool::Start(WorkerPoolOptions options) {
  PAGODA_CHECK(options.num_ranks >= 1);
  auto pool = std::make_unique<ProcessPool>(std::move(options));
  PAGODA_RETURN_IF_ERROR(pool->Open());
  return pool;
}

}  // namespace pagoda::parallel
