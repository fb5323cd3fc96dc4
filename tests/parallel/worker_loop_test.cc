#include "parallel/worker_loop.h"

#include <chrono>
#include <limits>
#include <string>
#include <sys/socket.h>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/frame_channel.h"
#include "tests/parallel/fake_executor.h"

namespace pagoda::parallel {
namespace {

using internal::v1::WorkerRequest;
using internal::v1::WorkerResponse;
using ::testing::HasSubstr;

// The loop in a thread; the test is the daemon.
class WorkerLoopTest : public testing::Test {
 protected:
  void StartLoop(const std::string& behaviour) {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    channel_ = std::make_unique<FrameChannel>(UniqueFd(fds[0]));
    loop_ = std::thread([this, behaviour, fd = fds[1]] {
      status_ = RunWorkerLoop(
          fd,
          [&](const internal::v1::OpenWorker&) -> absl::StatusOr<std::unique_ptr<StepExecutor>> {
            if (behaviour == "no-executor") return absl::NotFoundError("no such device");
            auto executor = std::make_unique<FakeExecutor>(FakeBehaviour{.name = behaviour});
            executor_ = executor.get();
            return executor;
          });
    });
  }

  void SendOpen() {
    WorkerRequest request;
    request.mutable_open()->mutable_config()->mutable_worker()->set_device("fake");
    request.mutable_open()->mutable_config()->mutable_engine()->set_max_steps_in_flight(2);
    Send(request);
  }
  void SendLoad() {
    WorkerRequest request;
    request.mutable_load_model()->set_num_kv_blocks(7);
    Send(request);
  }
  void SendStep(uint64_t step_id) {
    WorkerRequest request;
    request.mutable_step_plan()->set_step_id(step_id);
    request.mutable_step_plan()->add_row_slots(3);
    request.mutable_step_plan()->add_row_num_tokens(10);
    Send(request);
  }
  void Send(const WorkerRequest& request) { ASSERT_TRUE(channel_->Send(request).ok()); }

  WorkerResponse Receive() {
    WorkerResponse response;
    while (true) {
      const absl::StatusOr<bool> received = channel_->Receive(&response);
      EXPECT_TRUE(received.ok()) << received.status();
      if (!received.ok() || *received) return response;
      channel_->Wait(std::numeric_limits<int64_t>::max());
    }
  }
  void OpenAndLoad() {
    SendOpen();
    EXPECT_EQ(Receive().hello().device(), "fake");
    SendLoad();
    for (uint64_t i = 0; i <= 3; ++i) EXPECT_EQ(Receive().load_progress().bytes_done(), 100 * i);
    EXPECT_EQ(Receive().model_ready().num_kv_blocks(), 7u);
  }
  absl::Status Join() {
    loop_.join();
    return status_;
  }
  void Shutdown() {
    WorkerRequest request;
    request.mutable_shutdown();
    Send(request);
    EXPECT_TRUE(Join().ok()) << status_;
  }

  std::unique_ptr<FrameChannel> channel_;
  std::thread loop_;
  absl::Status status_;
  FakeExecutor* executor_ = nullptr;  // lives as long as the loop
};

TEST_F(WorkerLoopTest, OpensLoadsAndAnswersSteps) {
  StartLoop("");
  OpenAndLoad();
  for (uint64_t step_id = 1; step_id <= 50; ++step_id) {
    SendStep(step_id);
    const WorkerResponse response = Receive();
    EXPECT_EQ(response.step_result().step_id(), step_id);
    ASSERT_EQ(response.step_result().token_ids_size(), 1);
    EXPECT_EQ(response.step_result().token_ids(0), 10 + step_id);
  }
  Shutdown();
}

// The executor ends odd steps only when the next one is there.
TEST_F(WorkerLoopTest, TakesAPlanWhileAStepIsInFlight) {
  StartLoop("pairs");
  OpenAndLoad();
  for (uint64_t step_id = 1; step_id <= 20; step_id += 2) {
    SendStep(step_id);
    SendStep(step_id + 1);
    for (const uint64_t expected : {step_id, step_id + 1}) {
      const internal::v1::StepResult result = Receive().step_result();
      EXPECT_EQ(result.step_id(), expected);
      // Of 15 ns, 5 are those of the step before.
      ASSERT_EQ(result.device_work_size(), 1);
      EXPECT_EQ(result.device_work(0).busy_ns(), expected == 1 ? 15u : 10u);
    }
  }
  EXPECT_EQ(executor_->max_steps_in_flight(), 2);
  Shutdown();
}

// Two ranks of one card take turns: rank 0 answered a step, the daemon sent the next but one, and
// rank 1, still at the end of that step, refused what it had no buffers for.
TEST_F(WorkerLoopTest, APlanBeyondThoseInFlightWaitsForItsTurn) {
  StartLoop("late");
  OpenAndLoad();
  for (uint64_t step_id = 1; step_id <= 20; ++step_id) SendStep(step_id);
  for (uint64_t step_id = 1; step_id <= 20; ++step_id) {
    EXPECT_EQ(Receive().step_result().step_id(), step_id);
  }
  EXPECT_EQ(executor_->max_steps_in_flight(), 2);
  Shutdown();
}

TEST_F(WorkerLoopTest, WorksForItselfWhenNobodyWantsAnything) {
  StartLoop("");
  OpenAndLoad();
  const auto num_idle_calls = executor_->num_idle_calls();
  const auto wait_for_calls = [&](int count) {
    for (int i = 0; i < 500 && *num_idle_calls < count; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  };
  wait_for_calls(3);
  // Until there is nothing left, and again after a step.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(*num_idle_calls, 3);
  SendStep(1);
  EXPECT_EQ(Receive().step_result().step_id(), 1u);
  wait_for_calls(4);
  EXPECT_EQ(*num_idle_calls, 4);
  channel_.reset();
  EXPECT_TRUE(absl::IsCancelled(Join()));
}

TEST_F(WorkerLoopTest, ResetStartsTheStepsAgain) {
  StartLoop("");
  OpenAndLoad();
  SendStep(1);
  EXPECT_EQ(Receive().step_result().step_id(), 1u);
  WorkerRequest reset;
  reset.mutable_reset();
  Send(reset);
  SendStep(1);
  EXPECT_EQ(Receive().step_result().step_id(), 1u);
  Shutdown();
}

TEST_F(WorkerLoopTest, EndsWhenTheDaemonIsGone) {
  StartLoop("");
  OpenAndLoad();
  channel_.reset();
  EXPECT_EQ(Join().code(), absl::StatusCode::kCancelled);
}

TEST_F(WorkerLoopTest, SaysWhyItEnds) {
  struct Case {
    std::string behaviour;
    absl::StatusCode code;
    std::string message;
    uint64_t step_id;
  };
  const Case cases[] = {
      {"no-executor", absl::StatusCode::kNotFound, "no such device", 0},
      {"open-error", absl::StatusCode::kFailedPrecondition, "device 7 does not exist", 0},
      {"load-error", absl::StatusCode::kInvalidArgument, "truncated", 0},
      {"load-throw", absl::StatusCode::kInternal, "exception in the worker: thrown", 0},
      {"error", absl::StatusCode::kInternal, "device fault 17", 1},
      {"throw", absl::StatusCode::kInternal, "exception in the worker: thrown", 1},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.behaviour);
    StartLoop(c.behaviour);
    SendOpen();
    if (c.behaviour.find("open") == std::string::npos && c.behaviour != "no-executor") {
      EXPECT_TRUE(Receive().has_hello());
      SendLoad();
      if (c.step_id > 0) {
        while (!Receive().has_model_ready()) {
        }
        SendStep(1);
      }
    }
    const WorkerResponse response = Receive();
    ASSERT_TRUE(response.has_error()) << response.DebugString();
    EXPECT_EQ(response.error().code(), static_cast<int>(c.code));
    EXPECT_THAT(response.error().message(), HasSubstr(c.message));
    EXPECT_EQ(response.error().step_id(), c.step_id);
    EXPECT_EQ(Join().code(), c.code);
  }
}

TEST_F(WorkerLoopTest, RefusesRequestsOutOfOrder) {
  StartLoop("");
  SendStep(1);
  EXPECT_THAT(Receive().error().message(), HasSubstr("StepPlan without a model"));
  EXPECT_EQ(Join().code(), absl::StatusCode::kFailedPrecondition);
  StartLoop("");
  OpenAndLoad();
  SendStep(2);
  EXPECT_THAT(Receive().error().message(), HasSubstr("sent step 2, expected step 1"));
  EXPECT_EQ(Join().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pagoda::parallel
