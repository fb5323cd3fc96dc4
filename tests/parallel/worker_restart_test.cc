// A pool whose workers are lost and replaced.
#include <limits>
#include <signal.h>
#include <string>
#include <sys/wait.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/worker_pool.h"
#include "tests/parallel/fake_executor.h"
#include "tests/parallel/skipping_clock.h"

namespace pagoda::parallel {
namespace {

using internal::v1::LoadModel;
using internal::v1::StepPlan;
using internal::v1::StepResult;
using Cause = WorkerFailure::Cause;
using ::testing::HasSubstr;

constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();
constexpr int64_t kSecond = 1'000'000'000;

class WorkerRestartTest : public testing::Test {
 protected:
  void Start(const std::string& behaviour, uint64_t at_step = 1, int num_ranks = 1) {
    WorkerPoolOptions options;
    options.config.mutable_worker()->set_device("fake");
    options.config.mutable_engine()->set_step_timeout_ms(3'600'000);
    options.config.mutable_engine()->set_max_steps_in_flight(2);
    options.worker_command = {PAGODA_TEST_WORKER,
                              absl::StrCat("--behaviour=", behaviour),
                              absl::StrCat("--at-step=", at_step)};
    options.num_ranks = num_ranks;
    options.clock = &clock_;
    auto pool = WorkerPool::Start(std::move(options));
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
    LoadModel load;
    load.set_num_kv_blocks(11);
    ASSERT_TRUE(pool_->Load(load, nullptr).ok());
    ASSERT_TRUE(pool_->is_ready());
  }
  absl::Status Submit(uint64_t step_id) {
    StepPlan plan;
    plan.set_step_id(step_id);
    plan.add_row_slots(5);
    plan.add_row_num_tokens(100);
    return pool_->Submit(plan);
  }
  absl::Status Next() {
    StepResult result;
    while (true) {
      const absl::StatusOr<bool> polled = pool_->Poll(&result);
      if (!polled.ok()) return polled.status();
      if (*polled) return absl::OkStatus();
      pool_->Wait(-1, kNoDeadline);
    }
  }
  absl::Status Run(uint64_t first_step_id, uint64_t last_step_id) {
    absl::Status status;
    for (uint64_t id = first_step_id; status.ok() && id <= last_step_id; ++id) {
      status = Submit(id);
      if (status.ok()) status = Next();
    }
    return status;
  }
  // Until new workers are ready, or have failed.
  absl::Status Restart(int64_t not_before_ns = 0) {
    pool_->Restart(not_before_ns);
    EXPECT_FALSE(pool_->is_ready());
    StepResult result;
    while (!pool_->is_ready()) {
      const absl::StatusOr<bool> polled = pool_->Poll(&result);
      if (!polled.ok()) return polled.status();
      EXPECT_FALSE(*polled);
      if (!pool_->is_ready()) pool_->Wait(-1, kNoDeadline);
    }
    return absl::OkStatus();
  }

  SkippingClock clock_;
  std::unique_ptr<WorkerPool> pool_;
};

TEST_F(WorkerRestartTest, ReplacesWorkersHoweverTheyEnd) {
  struct Case {
    std::string behaviour;
    Cause cause;
  };
  const Case cases[] = {{"exit", Cause::kCrashed},
                        {"kill", Cause::kKilled},
                        {"abort", Cause::kCrashed},
                        {"error", Cause::kError},
                        {"throw", Cause::kError},
                        {"garbage", Cause::kProtocol},
                        {"wrong-step", Cause::kProtocol},
                        {"close", Cause::kCrashed}};
  const std::string descriptors = OpenDescriptors();
  for (const Case& c : cases) {
    SCOPED_TRACE(c.behaviour);
    ASSERT_NO_FATAL_FAILURE(Start(c.behaviour, 3));
    for (int restart = 0; restart < 3; ++restart) {
      const pid_t pid = pool_->hello().pid();
      ASSERT_TRUE(Run(1, 2).ok());
      const absl::Status status = Run(3, 4);
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      const WorkerFailure failure = pool_->failure();
      EXPECT_EQ(failure.cause, c.cause);
      EXPECT_EQ(failure.rank, 0);
      EXPECT_EQ(failure.operation, "step");
      EXPECT_EQ(failure.step_id, 3u);
      EXPECT_EQ(failure.status, status);
      EXPECT_FALSE(pool_->is_ready());
      ASSERT_TRUE(Restart().ok());
      EXPECT_EQ(kill(pid, 0), -1);
      EXPECT_NE(pool_->hello().pid(), pid);
    }
    EXPECT_TRUE(Run(1, 2).ok());
    pool_.reset();
    EXPECT_EQ(OpenDescriptors(), descriptors);
  }
}

TEST_F(WorkerRestartTest, ALossWhileNothingRunsIsToldAsSuch) {
  ASSERT_NO_FATAL_FAILURE(Start(""));
  kill(pool_->hello().pid(), SIGKILL);
  EXPECT_TRUE(absl::IsUnavailable(Next()));
  EXPECT_EQ(pool_->failure().cause, Cause::kKilled);
  EXPECT_EQ(pool_->failure().operation, "wait");
  EXPECT_EQ(pool_->failure().step_id, 0u);
  ASSERT_TRUE(Restart().ok());
  EXPECT_TRUE(Run(1, 5).ok());
}

// One rank of three: all are replaced.
TEST_F(WorkerRestartTest, ReplacesAllRanks) {
  ASSERT_NO_FATAL_FAILURE(Start("rank-1-kill", 4, 3));
  absl::Status status = Run(1, 9);
  // Rank 0 may have answered everything before the other came so far.
  if (status.ok()) status = Next();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(pool_->failure().rank, 1);
  ASSERT_TRUE(Restart().ok());
  EXPECT_TRUE(Run(1, 3).ok());
}

TEST_F(WorkerRestartTest, TellsAStoppedWorkerFromAStuckOne) {
  ASSERT_NO_FATAL_FAILURE(Start("hang", 2));
  ASSERT_TRUE(Run(1, 1).ok());
  ASSERT_TRUE(Submit(2).ok());
  clock_.Skip(3601 * kSecond);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Next()));
  EXPECT_EQ(pool_->failure().cause, Cause::kStuck);
  EXPECT_EQ(pool_->failure().step_id, 2u);
  ASSERT_TRUE(Restart().ok());
  ASSERT_TRUE(Run(1, 1).ok());

  const pid_t pid = pool_->hello().pid();
  kill(pid, SIGSTOP);
  siginfo_t stopped;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &stopped, WSTOPPED | WNOWAIT), 0);
  ASSERT_TRUE(Submit(2).ok());
  clock_.Skip(3601 * kSecond);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Next()));
  EXPECT_EQ(pool_->failure().cause, Cause::kStopped);
  EXPECT_THAT(std::string(pool_->failure().status.message()), HasSubstr("stopped by a signal"));
  ASSERT_TRUE(Restart().ok());
  EXPECT_TRUE(Run(1, 1).ok());
}

// What steps took is known: nobody waits an hour.
TEST_F(WorkerRestartTest, AStuckStepIsFoundInSeconds) {
  ASSERT_NO_FATAL_FAILURE(Start(""));
  ASSERT_TRUE(Run(1, 30).ok());
  kill(pool_->hello().pid(), SIGSTOP);
  ASSERT_TRUE(Submit(31).ok());
  const int64_t begin_ns = Clock::Monotonic().NowNs();
  EXPECT_TRUE(absl::IsDeadlineExceeded(Next()));
  EXPECT_EQ(pool_->failure().cause, Cause::kStopped);
  EXPECT_LT(Clock::Monotonic().NowNs() - begin_ns, 3 * kSecond);
  EXPECT_GT(Clock::Monotonic().NowNs() - begin_ns, kSecond);
}

TEST_F(WorkerRestartTest, WaitsBeforeItStartsWhenToldTo) {
  ASSERT_NO_FATAL_FAILURE(Start("exit", 2));
  EXPECT_FALSE(Run(1, 2).ok());
  const int64_t begin_ns = clock_.NowNs();
  ASSERT_TRUE(Restart(begin_ns + kSecond / 5).ok());
  EXPECT_GE(clock_.NowNs() - begin_ns, kSecond / 5);
}

TEST_F(WorkerRestartTest, AStartThatFailsIsAFailureLikeOthers) {
  for (const char* behaviour : {"second-load-error", "second-load-kill", "second-fewer-blocks"}) {
    SCOPED_TRACE(behaviour);
    ASSERT_NO_FATAL_FAILURE(Start(behaviour));
    kill(pool_->hello().pid(), SIGKILL);
    EXPECT_FALSE(Next().ok());
    EXPECT_FALSE(Restart().ok());
    EXPECT_EQ(pool_->failure().cause, Cause::kStart);
    EXPECT_EQ(pool_->failure().operation, "load");
    ASSERT_TRUE(Restart().ok());
    EXPECT_TRUE(Run(1, 3).ok());
  }
}

TEST_F(WorkerRestartTest, CanBeStoppedAtAnyMomentOfARestart) {
  for (int num_polls = 0; num_polls < 6; ++num_polls) {
    ASSERT_NO_FATAL_FAILURE(Start("kill", 1));
    EXPECT_FALSE(Run(1, 1).ok());
    pool_->Restart(0);
    StepResult result;
    for (int i = 0; i < num_polls; ++i) {
      ASSERT_TRUE(pool_->Poll(&result).ok());
      pool_->Wait(-1, clock_.NowNs() + kSecond / 100);
    }
    pool_->Stop();
    EXPECT_TRUE(absl::IsUnavailable(pool_->Poll(&result).status()));
  }
}

}  // namespace
}  // namespace pagoda::parallel
