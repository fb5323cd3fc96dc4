#include "parallel/worker_pool.h"

#include <algorithm>
#include <limits>
#include <poll.h>
#include <time.h>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "parallel/spin_governor.h"
#include "parallel/step_watch.h"
#include "parallel/worker_group.h"

namespace pagoda::parallel {
namespace {

using internal::v1::LoadModel;
using internal::v1::ModelReady;
using internal::v1::StepPlan;
using internal::v1::StepResult;
using internal::v1::WorkerHello;
using Phase = WorkerGroup::Phase;

constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kNsPerSecond = 1'000 * kNsPerMs;
constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();

// For the kernel to take a killed worker's memory back, a device's included.
constexpr int64_t kEndTimeoutNs = 30 * kNsPerSecond;

class ProcessPool final : public WorkerPool {
 public:
  explicit ProcessPool(WorkerPoolOptions options)
      : options_(std::move(options)),
        clock_(*options_.clock),
        watch_(options_.config.engine().step_timeout_ms() * kNsPerMs) {}
  ~ProcessPool() override { Stop(); }

  absl::Status Open();

  const WorkerHello& hello() const override { return hello_; }
  absl::StatusOr<ModelReady> Load(const LoadModel& load, const ProgressFn& progress) override;
  std::vector<Device> devices() const override { return group_->devices(); }
  absl::Status Submit(const StepPlan& plan) override;
  absl::StatusOr<bool> Poll(StepResult* result) override;
  void Wait(int wake_fd, int64_t deadline_ns) override;
  WorkerFailure failure() const override;
  void Restart(int64_t not_before_ns) override;
  bool is_ready() const override { return !failure_.has_value() && IsReady(); }
  int64_t late_at_ns() const override { return is_ready() ? group_->late_at_ns() : kNoDeadline; }
  void Stop() override;

 private:
  bool IsReady() const { return group_ != nullptr && group_->phase() == Phase::kReady; }
  absl::Status StartGroup();
  // Takes what the start of a group needs next.
  absl::Status AdvanceRestart();
  absl::Status AdvanceLoad();
  // Keeps the group's failure: it outlives the group.
  absl::Status Keep(absl::Status status);
  bool SpinForResult();
  int64_t DeadlineNs() const;

  const WorkerPoolOptions options_;
  const Clock& clock_;
  StepWatch watch_;
  SpinGovernor spin_governor_;
  uint32_t num_starts_ = 0;
  std::unique_ptr<WorkerGroup> group_;
  absl::optional<WorkerFailure> failure_;
  WorkerHello hello_;
  // What every group after the first loads too; absent before the first has.
  absl::optional<LoadModel> load_;

  // ---- Between a Restart and the next group: the one that ends, when it has to be gone, and when
  // the next may start.
  std::unique_ptr<WorkerGroup> ending_;
  int64_t end_by_ns_ = 0;
  int64_t not_before_ns_ = 0;

  std::vector<pollfd> poll_entries_;
};

absl::Status ProcessPool::Keep(absl::Status status) {
  if (!status.ok() && !failure_.has_value() && group_ != nullptr) failure_ = group_->failure();
  return status;
}

// ---- The first start

absl::Status ProcessPool::StartGroup() {
  group_ = std::make_unique<WorkerGroup>(&options_, ++num_starts_, &watch_);
  return Keep(group_->Open());
}

absl::Status ProcessPool::Open() {
  PAGODA_RETURN_IF_ERROR(StartGroup());
  while (true) {
    PAGODA_RETURN_IF_ERROR(Keep(group_->Advance(nullptr)));
    if (group_->phase() != Phase::kOpening) break;
    Wait(-1, kNoDeadline);
  }
  hello_ = group_->hello();
  return absl::OkStatus();
}

absl::StatusOr<ModelReady> ProcessPool::Load(const LoadModel& load, const ProgressFn& progress) {
  if (failure_.has_value()) return failure_->status;
  PAGODA_RETURN_IF_ERROR(Keep(group_->Load(load)));
  while (true) {
    PAGODA_RETURN_IF_ERROR(Keep(group_->Advance(progress)));
    if (IsReady()) break;
    Wait(-1, kNoDeadline);
  }
  load_ = load;
  load_->set_num_kv_blocks(group_->ready().num_kv_blocks());
  return group_->ready();
}

// ---- Steps

absl::Status ProcessPool::Submit(const StepPlan& plan) {
  if (failure_.has_value()) return failure_->status;
  PAGODA_CHECK(IsReady());
  return Keep(group_->Submit(plan));
}

absl::StatusOr<bool> ProcessPool::Poll(StepResult* result) {
  if (failure_.has_value()) return failure_->status;
  if (!IsReady()) {
    PAGODA_RETURN_IF_ERROR(AdvanceRestart());
    return false;
  }
  const absl::StatusOr<bool> polled = group_->Poll(result);
  if (!polled.ok()) return Keep(polled.status());
  return polled;
}

bool ProcessPool::SpinForResult() {
  if (!IsReady() || !group_->has_steps() || !spin_governor_.ShouldSpin()) return false;
  const bool succeeded = group_->Spin(SpinGovernor::kSpinNs);
  spin_governor_.Report(succeeded);
  return succeeded;
}

int64_t ProcessPool::DeadlineNs() const {
  if (ending_ != nullptr) return end_by_ns_;
  return group_ != nullptr ? group_->deadline_ns() : not_before_ns_;
}

void ProcessPool::Wait(int wake_fd, int64_t deadline_ns) {
  if (failure_.has_value() || SpinForResult()) return;
  poll_entries_.clear();
  poll_entries_.push_back({.fd = wake_fd, .events = POLLIN, .revents = 0});
  if (ending_ != nullptr) ending_->AddProcessPollEntries(&poll_entries_);
  if (group_ != nullptr) group_->AddPollEntries(&poll_entries_);
  const int64_t end_ns = std::min(deadline_ns, DeadlineNs());
  const int64_t left_ns = std::max<int64_t>(end_ns - clock_.NowNs(), 0);
  const timespec timeout{.tv_sec = left_ns / kNsPerSecond, .tv_nsec = left_ns % kNsPerSecond};
  ppoll(poll_entries_.data(),
        poll_entries_.size(),
        end_ns == kNoDeadline ? nullptr : &timeout,
        nullptr);
  if (group_ != nullptr) group_->NotePolled(absl::MakeConstSpan(poll_entries_).subspan(1));
}

// ---- Restarts

WorkerFailure ProcessPool::failure() const {
  PAGODA_CHECK(failure_.has_value());
  return *failure_;
}

void ProcessPool::Restart(int64_t not_before_ns) {
  PAGODA_CHECK(load_.has_value());
  // A group that still ends after another restart is rare; the destructor waits for it.
  if (group_ != nullptr) ending_ = std::move(group_);
  if (ending_ != nullptr) ending_->Kill();
  end_by_ns_ = clock_.NowNs() + kEndTimeoutNs;
  not_before_ns_ = not_before_ns;
  failure_.reset();
}

absl::Status ProcessPool::AdvanceRestart() {
  if (ending_ != nullptr) {
    // A device's memory is free when its last owner is gone, not before.
    if (ending_->HasEnded()) {
      ending_.reset();
    } else if (clock_.NowNs() >= end_by_ns_) {
      failure_ = {.cause = WorkerFailure::Cause::kStart, .operation = "end"};
      failure_->status = absl::DeadlineExceededError(absl::StrFormat(
          "a killed worker was still there after %d s", kEndTimeoutNs / kNsPerSecond));
      return failure_->status;
    } else {
      return absl::OkStatus();
    }
  }
  if (group_ != nullptr) return AdvanceLoad();
  return clock_.NowNs() >= not_before_ns_ ? StartGroup() : absl::OkStatus();
}

absl::Status ProcessPool::AdvanceLoad() {
  PAGODA_RETURN_IF_ERROR(Keep(group_->Advance(nullptr)));
  if (group_->phase() == Phase::kOpen) return Keep(group_->Load(*load_));
  if (!IsReady()) return absl::OkStatus();
  hello_ = group_->hello();
  if (group_->ready().num_kv_blocks() >= load_->num_kv_blocks()) return absl::OkStatus();
  failure_ = {.cause = WorkerFailure::Cause::kStart, .operation = "load"};
  failure_->status =
      absl::ResourceExhaustedError(absl::StrFormat("%d KV blocks fit, expected %d as before",
                                                   group_->ready().num_kv_blocks(),
                                                   load_->num_kv_blocks()));
  return failure_->status;
}

void ProcessPool::Stop() {
  if (group_ != nullptr) group_->Stop();
  group_.reset();
  ending_.reset();
  if (failure_.has_value()) return;
  failure_ = {.cause = WorkerFailure::Cause::kStart, .operation = "stop"};
  failure_->status = absl::UnavailableError("the worker pool has been stopped");
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerPool>> WorkerPool::Start(WorkerPoolOptions options) {
  PAGODA_CHECK(options.num_ranks >= 1);
  auto pool = std::make_unique<ProcessPool>(std::move(options));
  PAGODA_RETURN_IF_ERROR(pool->Open());
  return pool;
}

}  // namespace pagoda::parallel
