#include "parallel/worker_pool.h"

#include <atomic>
#include <chrono>
#include <fcntl.h>
#include <limits>
#include <signal.h>
#include <string>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/unique_fd.h"
#include "tests/parallel/fake_executor.h"
#include "tests/parallel/skipping_clock.h"

namespace pagoda::parallel {
namespace {

using internal::v1::LoadModel;
using internal::v1::LoadProgress;
using internal::v1::StepPlan;
using internal::v1::StepResult;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

class WorkerPoolTest : public testing::Test {
 protected:
  absl::Status Start(const std::string& behaviour, uint64_t at_step = 1, int num_ranks = 1) {
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
    if (!pool.ok()) return pool.status();
    pool_ = *std::move(pool);
    return absl::OkStatus();
  }
  absl::Status Load() {
    LoadModel load;
    load.set_num_kv_blocks(11);
    return pool_->Load(load, nullptr).status();
  }
  absl::Status StartAndLoad(const std::string& behaviour, uint64_t at_step = 1, int num_ranks = 1) {
    absl::Status status = Start(behaviour, at_step, num_ranks);
    return status.ok() ? Load() : status;
  }
  absl::Status Submit(uint64_t step_id, int num_prompt_tokens = 0) {
    StepPlan plan;
    plan.set_step_id(step_id);
    plan.add_row_slots(5);
    plan.add_row_num_tokens(100);
    if (num_prompt_tokens > 0) {
      auto* sequence = plan.add_new_sequences();
      for (int i = 0; i < num_prompt_tokens; ++i) sequence->add_token_ids(i);
    }
    return pool_->Submit(plan);
  }
  absl::StatusOr<StepResult> Next() {
    StepResult result;
    while (true) {
      const absl::StatusOr<bool> polled = pool_->Poll(&result);
      if (!polled.ok()) return polled.status();
      if (*polled) return result;
      pool_->Wait(-1, kForever);
    }
  }

  SkippingClock clock_;
  std::unique_ptr<WorkerPool> pool_;
};

TEST_F(WorkerPoolTest, RunsSteps) {
  ASSERT_TRUE(Start("").ok());
  EXPECT_EQ(pool_->hello().device(), "fake");
  EXPECT_GT(pool_->hello().pid(), 0);
  std::vector<uint64_t> bytes_done;
  LoadModel load;
  load.set_num_kv_blocks(11);
  const auto ready = pool_->Load(
      load, [&](const LoadProgress& progress) { bytes_done.push_back(progress.bytes_done()); });
  ASSERT_TRUE(ready.ok()) << ready.status();
  EXPECT_EQ(ready->num_kv_blocks(), 11u);
  EXPECT_EQ(bytes_done, (std::vector<uint64_t>{0, 100, 200, 300}));
  for (uint64_t step_id = 1; step_id <= 200; ++step_id) {
    ASSERT_TRUE(Submit(step_id).ok());
    const auto result = Next();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->step_id(), step_id);
    EXPECT_EQ(result->sampled_slots(0), 5u);
    EXPECT_EQ(result->token_ids(0), 100 + step_id);
  }
}

TEST_F(WorkerPoolTest, KeepsTwoStepsInFlight) {
  ASSERT_TRUE(StartAndLoad("pairs").ok());
  for (uint64_t step_id = 1; step_id <= 100; step_id += 2) {
    ASSERT_TRUE(Submit(step_id).ok());
    ASSERT_TRUE(Submit(step_id + 1).ok());
    EXPECT_EQ(Next()->step_id(), step_id);
    EXPECT_EQ(Next()->step_id(), step_id + 1);
  }
}

// Prompts of 100k tokens and results of megabytes, with two steps in flight.
TEST_F(WorkerPoolTest, CarriesLargePlansAndResults) {
  ASSERT_TRUE(StartAndLoad("").ok());
  ASSERT_TRUE(Submit(1, 1'000'000).ok());
  ASSERT_TRUE(Submit(2, 100'000).ok());
  auto result = Next();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->prompt_logprobs(0).logprobs_size(), 1'000'000);
  EXPECT_EQ(result->prompt_logprobs(0).top_ids(999'999), 999'999u);
  result = Next();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->prompt_logprobs(0).logprobs_size(), 100'000);
}

TEST_F(WorkerPoolTest, SeveralRanksAnswerAsOne) {
  ASSERT_TRUE(Start("", 1, 3).ok());
  ASSERT_TRUE(Load().ok());
  const std::vector<WorkerPool::Device> devices = pool_->devices();
  ASSERT_EQ(devices.size(), 3u);
  EXPECT_EQ(devices[2].ready.weight_bytes(), 300u);
  EXPECT_NE(devices[2].hello.pid(), devices[1].hello.pid());
  uint64_t num_steps = 0, num_eager_steps[3] = {};
  // Rank 0 sets the pace; the others may have had no processor yet.
  while (num_steps < 50 || num_eager_steps[1] == 0 || num_eager_steps[2] == 0) {
    const uint64_t step_id = ++num_steps;
    ASSERT_TRUE(Submit(step_id).ok());
    const auto result = Next();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->step_id(), step_id);
    // What other ranks have answered later comes with a later result.
    ASSERT_EQ(result->device_work_size(), 3);
    for (int rank = 0; rank < 3; ++rank)
      num_eager_steps[rank] += result->device_work(rank).eager_steps();
  }
  EXPECT_EQ(num_eager_steps[0], num_steps);
  for (uint64_t rank : {1, 2}) {
    EXPECT_EQ(num_eager_steps[rank] % (rank + 1), 0u);
    EXPECT_LE(num_eager_steps[rank], (rank + 1) * num_steps);
  }
}

TEST_F(WorkerPoolTest, TellsHowAWorkerDied) {
  struct Case {
    std::string behaviour;
    std::string text;
  };
  const Case cases[] = {
      {"exit", "exited with status 4"},
      {"kill", "was killed by signal 9 (Killed)"},
      {"abort", "was killed by signal 6 (Aborted)"},
      {"error", "failed in step 3: INTERNAL: device fault 17; it exited with status 5"},
      {"throw",
       "failed in step 3: INTERNAL: exception in the worker: thrown; it exited with status 5"},
      {"garbage", "was given up: frame starts with"},
      {"wrong-step", "answered with the result of step 8, expected the result of step 3"},
      {"close", "exited with status 5"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.behaviour);
    ASSERT_TRUE(StartAndLoad(c.behaviour, 3).ok());
    absl::Status status;
    for (uint64_t step_id = 1; status.ok() && step_id <= 4; ++step_id) {
      status = Submit(step_id);
      if (status.ok()) status = Next().status();
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("worker 0 (pid "), HasSubstr(c.text)));
    // Final.
    EXPECT_EQ(Submit(9), status);
    StepResult result;
    EXPECT_EQ(pool_->Poll(&result).status(), status);
    pool_->Wait(-1, kForever);
  }
}

TEST_F(WorkerPoolTest, StartAndLoadKeepTheWorkersStatus) {
  EXPECT_EQ(Start("open-error"), absl::FailedPreconditionError("device 7 does not exist"));
  EXPECT_THAT(std::string(Start("open-exit").message()), HasSubstr("exited with status 9"));
  EXPECT_EQ(StartAndLoad("load-error"), absl::InvalidArgumentError("model.safetensors: truncated"));
  EXPECT_THAT(std::string(StartAndLoad("load-kill").message()), HasSubstr("killed by signal 9"));
}

TEST_F(WorkerPoolTest, AMissingExecutableIsNamed) {
  WorkerPoolOptions options;
  options.worker_command = {"/nowhere/pagoda", "worker"};
  EXPECT_THAT(std::string(WorkerPool::Start(options).status().message()),
              HasSubstr("/nowhere/pagoda"));
}

// kill -9 while nothing runs: seen by Wait, without a step.
TEST_F(WorkerPoolTest, AWorkerKilledWhileIdleIsSeen) {
  ASSERT_TRUE(StartAndLoad("").ok());
  kill(pool_->hello().pid(), SIGKILL);
  const absl::Status status = Next().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("killed by signal 9"));
}

// B097: a step that never ends.
TEST_F(WorkerPoolTest, AHangingStepTimesOut) {
  ASSERT_TRUE(StartAndLoad("hang", 2).ok());
  ASSERT_TRUE(Submit(1).ok());
  ASSERT_TRUE(Next().ok());
  ASSERT_TRUE(Submit(2).ok());
  StepResult result;
  EXPECT_FALSE(pool_->Poll(&result).value());
  clock_.Skip(3'599'000'000'000);
  EXPECT_FALSE(pool_->Poll(&result).value());
  clock_.Skip(2'000'000'000);
  const absl::Status status = Next().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has not answered step 2 for 3600000 ms"));
}

// B096: a stopped process holds its pool up no longer than the timeout, and is killed with it.
TEST_F(WorkerPoolTest, AStoppedWorkerTimesOutAndDies) {
  ASSERT_TRUE(StartAndLoad("").ok());
  const pid_t pid = pool_->hello().pid();
  kill(pid, SIGSTOP);
  ASSERT_TRUE(Submit(1).ok());
  clock_.Skip(3'601'000'000'000);
  EXPECT_EQ(Next().status().code(), absl::StatusCode::kDeadlineExceeded);
  pool_.reset();
  EXPECT_EQ(kill(pid, 0), -1);
}

// While a worker starts it may be silent for minutes, but not if it cannot run.
TEST_F(WorkerPoolTest, AWorkerStoppedWhileItStartsIsFoundInSeconds) {
  for (const char* behaviour : {"rank-1-open-stop", "rank-1-load-stop"}) {
    std::atomic<bool> is_over{false};
    std::thread skipper([&] {
      while (!is_over.load()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        clock_.Skip(1'000'000'000);
      }
    });
    const int64_t begin_ns = clock_.NowNs();
    const absl::Status status = StartAndLoad(behaviour, 1, 2);
    const int64_t took_ns = clock_.NowNs() - begin_ns;
    is_over.store(true);
    skipper.join();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("worker 1"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("was stopped by a signal for 10 s"));
    EXPECT_LT(took_ns, 90'000'000'000);
  }
}

TEST_F(WorkerPoolTest, WaitWatchesTheWakeDescriptorAndTheDeadline) {
  ASSERT_TRUE(StartAndLoad("").ok());
  const UniqueFd wake(eventfd(1, EFD_CLOEXEC));
  pool_->Wait(wake.get(), kForever);
  pool_->Wait(-1, clock_.NowNs() + 1'000'000);
  pool_->Wait(-1, 0);
}

TEST_F(WorkerPoolTest, StopEndsTheWorkerAndIsIdempotent) {
  const std::string before = OpenDescriptors();
  ASSERT_TRUE(StartAndLoad("").ok());
  const pid_t pid = pool_->hello().pid();
  pool_->Stop();
  EXPECT_EQ(kill(pid, 0), -1);
  pool_->Stop();
  EXPECT_EQ(Submit(1).code(), absl::StatusCode::kUnavailable);
  pool_.reset();
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(WorkerPoolTest, NoDescriptorsLeakOverDeaths) {
  const std::string before = OpenDescriptors();
  for (const char* behaviour : {"exit", "kill", "error", "garbage", "hang"}) {
    ASSERT_TRUE(StartAndLoad(behaviour).ok());
    ASSERT_TRUE(Submit(1).ok());
    pool_.reset();
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

// S1: a worker has its standard streams and the channel, and the channel is no listening socket.
TEST_F(WorkerPoolTest, AWorkerHasNoDescriptorButItsChannel) {
  ASSERT_TRUE(Start("").ok());
  EXPECT_EQ(pool_->hello().device_name(), "0 1 2 3");
  // Several ranks have the memory that they share too.
  ASSERT_TRUE(Start("", 1, 2).ok());
  EXPECT_EQ(pool_->hello().device_name(), "0 1 2 3 4");
}

}  // namespace
}  // namespace pagoda::parallel
