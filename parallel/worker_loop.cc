#include "parallel/worker_loop.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <sys/prctl.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/base/clock.h"
#include "kernels/base/device_fault.h"
#include "kernels/base/status_macros.h"
#include "parallel/frame_channel.h"
#include "parallel/spin_governor.h"

namespace pagoda::parallel {
namespace {

using internal::v1::LoadModel;
using internal::v1::LoadProgress;
using internal::v1::OpenWorker;
using internal::v1::StepPlan;
using internal::v1::WorkerRequest;
using internal::v1::WorkerResponse;

// A step that has run for t is looked at again after t / 32, within these bounds: its end is seen
// at most 3 % late, and a long step costs little.
constexpr int64_t kStepPollShare = 32;
constexpr int64_t kMinStepPollNs = 20'000;
constexpr int64_t kMaxStepPollNs = 500'000;
// The kernel's default of 50 us would swamp kMinStepPollNs.
constexpr unsigned long kTimerSlackNs = 1'000;
// Without requests for so long a worker improves itself: longer than pauses within a conversation
// of a client with itself, short against those between clients.
constexpr int64_t kIdleNs = 500'000'000;
// For the daemon to read why this worker ends.
constexpr int64_t kFarewellTimeoutNs = 1'000'000'000;

// A channel that ends is the daemon's end, not a fault of the worker.
absl::Status FromChannel(absl::Status status) {
  if (!absl::IsUnavailable(status)) return status;
  return absl::CancelledError(absl::StrCat("the daemon is gone: ", status.message()));
}

class WorkerLoop {
 public:
  WorkerLoop(int channel_fd, const StepExecutorFactory& make_executor)
      : channel_(UniqueFd(channel_fd)), make_executor_(make_executor) {}

  absl::Status Run();
  // Tells the daemon why the worker ends.
  void SayFarewell(const absl::Status& why);

 private:
  absl::Status HandleRequest();
  absl::Status HandleOpen(const OpenWorker& open);
  absl::Status HandleLoad(const LoadModel& load);
  absl::Status HandleStep(const StepPlan& plan);
  absl::StatusOr<bool> AnswerStep();
  void NoteBusyTime(internal::v1::StepResult& result);
  absl::Status CheckState(bool ok, absl::string_view request, absl::string_view expected) const;
  // Rank 0's answers set the pace of plans: another rank may still be at the end of a step that is
  // answered. It leaves the next plan in the channel until it is through.
  bool HasRoom() const { return num_steps_in_flight_ < max_steps_in_flight_; }
  absl::Status WaitForNews(int64_t last_news_ns);
  absl::Status WaitForRequest(int64_t quiet_ns);

  FrameChannel channel_;
  const StepExecutorFactory& make_executor_;
  const Clock& clock_ = Clock::Monotonic();
  std::unique_ptr<StepExecutor> executor_;
  bool loaded_ = false;
  bool shutdown_ = false;
  // DoIdleWork has not said that none is left since the last step.
  bool may_have_idle_work_ = false;
  int num_steps_in_flight_ = 0;
  int max_steps_in_flight_ = 1;
  uint64_t last_step_id_ = 0;
  uint64_t busy_until_ns_ = 0;  // by the executor's clock
  SpinGovernor spin_governor_;
  WorkerRequest request_;
  WorkerResponse response_;
};

absl::Status WorkerLoop::Run() {
  int64_t last_news_ns = clock_.NowNs();
  while (true) {
    // The end of a step is told before the next plan is taken: an executor may run a whole step in
    // Submit.
    PAGODA_ASSIGN_OR_RETURN(bool news, AnswerStep());
    PAGODA_RETURN_IF_ERROR(FromChannel(channel_.Flush()));
    absl::StatusOr<bool> request_came = false;
    if (HasRoom()) request_came = channel_.Receive(&request_);
    PAGODA_RETURN_IF_ERROR(FromChannel(request_came.status()));
    if (*request_came) {
      PAGODA_RETURN_IF_ERROR(HandleRequest());
      if (shutdown_) return absl::OkStatus();
      news = true;
    }
    if (news) {
      last_news_ns = clock_.NowNs();
    } else {
      PAGODA_RETURN_IF_ERROR(WaitForNews(last_news_ns));
    }
  }
}

absl::Status WorkerLoop::WaitForNews(int64_t last_news_ns) {
  const int64_t quiet_ns = clock_.NowNs() - last_news_ns;
  if (num_steps_in_flight_ == 0) return WaitForRequest(quiet_ns);
  if (quiet_ns < SpinGovernor::kSpinNs) return absl::OkStatus();
  const int64_t wait_ns = std::clamp(quiet_ns / kStepPollShare, kMinStepPollNs, kMaxStepPollNs);
  if (HasRoom()) {
    channel_.Wait(wait_ns);
  } else {
    // What waits in the channel would end a Wait at once.
    absl::SleepFor(absl::Nanoseconds(wait_ns));
  }
  return absl::OkStatus();
}

absl::Status WorkerLoop::WaitForRequest(int64_t quiet_ns) {
  if (may_have_idle_work_ && quiet_ns >= kIdleNs) {
    PAGODA_ASSIGN_OR_RETURN(may_have_idle_work_, executor_->DoIdleWork());
    return absl::OkStatus();
  }
  if (spin_governor_.ShouldSpin()) {
    const bool succeeded = channel_.Spin(SpinGovernor::kSpinNs);
    spin_governor_.Report(succeeded);
    if (succeeded) return absl::OkStatus();
  }
  channel_.Wait(may_have_idle_work_ ? kIdleNs - quiet_ns : std::numeric_limits<int64_t>::max());
  return absl::OkStatus();
}

absl::Status WorkerLoop::HandleRequest() {
  switch (request_.body_case()) {
    case WorkerRequest::kOpen:
      return HandleOpen(request_.open());
    case WorkerRequest::kLoadModel:
      return HandleLoad(request_.load_model());
    case WorkerRequest::kStepPlan:
      return HandleStep(request_.step_plan());
    case WorkerRequest::kReset:
      PAGODA_RETURN_IF_ERROR(CheckState(
          loaded_ && num_steps_in_flight_ == 0, "Reset", "a model and no step in flight"));
      last_step_id_ = 0;
      return executor_->Reset();
    case WorkerRequest::kShutdown:
      shutdown_ = true;
      return absl::OkStatus();
    case WorkerRequest::BODY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the daemon sent an empty request");
}

absl::Status WorkerLoop::CheckState(bool ok,
                                    absl::string_view request,
                                    absl::string_view expected) const {
  if (ok) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the daemon sent ", request, " without ", expected));
}

absl::Status WorkerLoop::HandleOpen(const OpenWorker& open) {
  PAGODA_RETURN_IF_ERROR(CheckState(executor_ == nullptr, "OpenWorker", "a fresh worker"));
  max_steps_in_flight_ =
      std::max(static_cast<int>(open.config().engine().max_steps_in_flight()), 1);
  PAGODA_ASSIGN_OR_RETURN(executor_, make_executor_(open));
  PAGODA_ASSIGN_OR_RETURN(*response_.mutable_hello(), executor_->Open(open));
  return FromChannel(channel_.Send(response_));
}

absl::Status WorkerLoop::HandleLoad(const LoadModel& load) {
  PAGODA_RETURN_IF_ERROR(
      CheckState(executor_ != nullptr && !loaded_, "LoadModel", "an open device"));
  const auto send_progress = [this](const LoadProgress& progress) {
    *response_.mutable_load_progress() = progress;
    // The daemon's end shows at the next receive; a load that it has given up is stopped by a
    // signal.
    channel_.Send(response_).IgnoreError();
  };
  PAGODA_ASSIGN_OR_RETURN(*response_.mutable_model_ready(), executor_->Load(load, send_progress));
  loaded_ = true;
  may_have_idle_work_ = true;
  return FromChannel(channel_.Send(response_));
}

absl::Status WorkerLoop::HandleStep(const StepPlan& plan) {
  PAGODA_RETURN_IF_ERROR(CheckState(loaded_, "StepPlan", "a model"));
  if (plan.step_id() != last_step_id_ + 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the daemon sent step ", plan.step_id(), ", expected step ", last_step_id_ + 1));
  }
  last_step_id_ = plan.step_id();
  ++num_steps_in_flight_;
  may_have_idle_work_ = true;
  return executor_->Submit(plan);
}

absl::StatusOr<bool> WorkerLoop::AnswerStep() {
  if (num_steps_in_flight_ == 0) return false;
  internal::v1::StepResult* result = response_.mutable_step_result();
  result->Clear();
  PAGODA_ASSIGN_OR_RETURN(const bool ended, executor_->TakeResult(result));
  if (!ended) return false;
  --num_steps_in_flight_;
  NoteBusyTime(*result);
  PAGODA_RETURN_IF_ERROR(FromChannel(channel_.Send(response_)));
  return true;
}

// Steps overlap: each counts from the end of the one before.
void WorkerLoop::NoteBusyTime(internal::v1::StepResult& result) {
  const uint64_t begin_ns = std::max(result.start_ns(), busy_until_ns_);
  busy_until_ns_ = std::max(busy_until_ns_, result.end_ns());
  if (result.device_work().empty()) result.add_device_work();
  result.mutable_device_work(0)->set_busy_ns(busy_until_ns_ - std::min(begin_ns, busy_until_ns_));
}

void WorkerLoop::SayFarewell(const absl::Status& why) {
  internal::v1::WorkerError* error = response_.mutable_error();
  error->set_code(static_cast<int32_t>(why.code()));
  error->set_message(std::string(why.message()));
  error->set_device_fault(static_cast<int32_t>(DeviceFaultOf(why)));
  error->set_step_id(num_steps_in_flight_ > 0 ? last_step_id_ - num_steps_in_flight_ + 1 : 0);
  if (channel_.Send(response_).ok()) channel_.FlushWithin(kFarewellTimeoutNs).IgnoreError();
}

absl::Status RunGuarded(WorkerLoop& loop) {
  try {
    return loop.Run();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the worker is out of memory");
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("exception in the worker: ", e.what()));
  }
}

}  // namespace

absl::Status RunWorkerLoop(int channel_fd, const StepExecutorFactory& make_executor) {
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  WorkerLoop loop(channel_fd, make_executor);
  const absl::Status status = RunGuarded(loop);
  if (status.ok()) return status;
  loop.SayFarewell(status);
  return status;
}

}  // namespace pagoda::parallel
