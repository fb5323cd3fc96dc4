#include "parallel/frame_channel.h"

#include <limits>
#include <string>
#include <sys/socket.h>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "pagoda/internal/v1/worker.pb.h"

namespace pagoda::parallel {
namespace {

using internal::v1::StepPlan;
using ::testing::HasSubstr;

constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

struct Sockets {
  Sockets() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    a.Reset(fds[0]);
    b.Reset(fds[1]);
  }
  UniqueFd a, b;
};

class FrameChannelTest : public testing::Test {
 protected:
  Sockets sockets_;
  FrameChannel a_{std::move(sockets_.a)};
  FrameChannel b_{std::move(sockets_.b)};
};

StepPlan PlanWithPrompt(uint64_t step_id, uint32_t num_tokens) {
  StepPlan plan;
  plan.set_step_id(step_id);
  auto* sequence = plan.add_new_sequences();
  for (uint32_t i = 0; i < num_tokens; ++i) sequence->add_token_ids(uint32_t{7919} * i);
  return plan;
}

// Receives with waiting; flushes meanwhile, as both ends of a real channel do.
absl::Status ReceiveNext(FrameChannel& channel, StepPlan* plan) {
  while (true) {
    if (absl::Status status = channel.Flush(); !status.ok()) return status;
    const absl::StatusOr<bool> received = channel.Receive(plan);
    if (!received.ok()) return received.status();
    if (*received) return absl::OkStatus();
    channel.Wait(kForever);
  }
}

TEST_F(FrameChannelTest, MessagesArriveInOrder) {
  StepPlan plan;
  EXPECT_FALSE(b_.Receive(&plan).value());
  for (uint64_t i = 1; i <= 100; ++i) {
    plan.set_step_id(i);
    ASSERT_TRUE(a_.Send(plan).ok());
  }
  for (uint64_t i = 1; i <= 100; ++i) {
    ASSERT_TRUE(b_.Receive(&plan).value());
    EXPECT_EQ(plan.step_id(), i);
  }
  EXPECT_FALSE(b_.Receive(&plan).value());
}

// Both ends send more than the socket holds before either reads.
TEST_F(FrameChannelTest, LargeMessagesBothWaysDoNotDeadlock) {
  const StepPlan large = PlanWithPrompt(1, 2'000'000);
  ASSERT_GT(large.ByteSizeLong(), size_t{5} << 20);
  const auto exchange = [&large](FrameChannel& channel) {
    StepPlan got;
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(channel.Send(large).ok());
      ASSERT_TRUE(ReceiveNext(channel, &got).ok());
      ASSERT_EQ(got.SerializeAsString(), large.SerializeAsString());
    }
    ASSERT_TRUE(channel.FlushWithin(kForever / 2).ok());
  };
  std::thread other([&] { exchange(b_); });
  exchange(a_);
  other.join();
}

TEST_F(FrameChannelTest, APeerThatDoesNotReadBlocksNobody) {
  ASSERT_TRUE(a_.Send(PlanWithPrompt(1, 1'000'000)).ok());
  EXPECT_TRUE(a_.has_pending_output());
  EXPECT_EQ(a_.FlushWithin(2'000'000).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(FrameChannelRawTest, APeerThatIsGoneIsUnavailable) {
  Sockets sockets;
  FrameChannel channel(std::move(sockets.a));
  sockets.b.Reset();
  StepPlan plan;
  EXPECT_EQ(channel.Receive(&plan).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(channel.Send(plan).code(), absl::StatusCode::kUnavailable);
  channel.Wait(kForever);
}

TEST(FrameChannelRawTest, LastWordsAreReadBeforeTheEnd) {
  Sockets sockets;
  FrameChannel reader(std::move(sockets.a));
  StepPlan plan;
  plan.set_step_id(42);
  {
    FrameChannel writer(std::move(sockets.b));
    ASSERT_TRUE(writer.Send(plan).ok());
  }
  StepPlan got;
  EXPECT_TRUE(reader.Receive(&got).value());
  EXPECT_EQ(got.step_id(), 42u);
  EXPECT_EQ(reader.Receive(&got).status().code(), absl::StatusCode::kUnavailable);
}

TEST(FrameChannelRawTest, AHalfFrameIsToldApart) {
  Sockets sockets;
  FrameChannel reader(std::move(sockets.a));
  ASSERT_EQ(send(sockets.b.get(), "PGDF", 4, 0), 4);
  sockets.b.Reset();
  StepPlan got;
  EXPECT_THAT(std::string(reader.Receive(&got).status().message()),
              HasSubstr("in the middle of a frame"));
}

TEST(FrameChannelRawTest, AFrameThatIsNoMessageIsDataLoss) {
  Sockets sockets;
  FrameChannel reader(std::move(sockets.a));
  const std::string payload = "\xff\xff\xff";
  std::string frame(kFrameHeaderBytes, '\0');
  EncodeFrameHeader(1, payload, frame.data());
  frame += payload;
  ASSERT_EQ(send(sockets.b.get(), frame.data(), frame.size(), 0),
            static_cast<ssize_t>(frame.size()));
  StepPlan got;
  const absl::Status status = reader.Receive(&got).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("holds no pagoda.internal.v1.StepPlan"));
}

TEST_F(FrameChannelTest, SpinSeesAMessageAndGivesUpWithoutOne) {
  EXPECT_FALSE(b_.Spin(10'000));
  StepPlan plan;
  plan.set_step_id(3);
  ASSERT_TRUE(a_.Send(plan).ok());
  EXPECT_TRUE(b_.Spin(kForever / 2));
  EXPECT_TRUE(b_.Receive(&plan).value());
}

}  // namespace
}  // namespace pagoda::parallel
