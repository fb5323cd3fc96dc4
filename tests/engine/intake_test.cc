#include "engine/intake.h"

#include <poll.h>

#include <gtest/gtest.h>

#include "engine/errors.h"

namespace pagoda::engine {
namespace {

std::unique_ptr<LiveRequest> NewLive(uint64_t key, int32_t num_tokens = 3, int32_t n = 1) {
  Request request;
  request.key = RequestKey(key);
  request.prompt.assign(num_tokens, 1);
  request.n = request.best_of = n;
  return std::make_unique<LiveRequest>(std::move(request), 100, nullptr);
}

bool IsReadable(int fd) {
  pollfd poll_fd = {.fd = fd, .events = POLLIN};
  return poll(&poll_fd, 1, 0) == 1;
}

TEST(IntakeTest, CountsSequencesAndTokensOfWhatWaits) {
  Intake intake({.max_waiting_requests = 4, .max_waiting_tokens = 20});
  const Intake::Load two = Intake::LoadOf(NewLive(1, 5, 2)->request);
  EXPECT_EQ(two.num_sequences, 2);
  EXPECT_EQ(two.num_tokens, 10);
  ASSERT_TRUE(intake.Reserve(two, {}).ok());
  ASSERT_TRUE(intake.Reserve({.num_sequences = 1, .num_tokens = 1}, {}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(intake.Reserve(two, {})));
  EXPECT_TRUE(
      absl::IsResourceExhausted(intake.Reserve({.num_sequences = 1, .num_tokens = 10}, {})));
  EXPECT_EQ(intake.num_waiting(), 3);
  intake.Leave(two, {});
  EXPECT_TRUE(intake.Reserve(two, {}).ok());
}

TEST(IntakeTest, TakesAnythingWhenNobodyWaits) {
  Intake intake({.max_waiting_requests = 0, .max_waiting_tokens = 0});
  EXPECT_TRUE(intake.Reserve({.num_sequences = 8, .num_tokens = 1000}, {}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(intake.Reserve({.num_sequences = 1, .num_tokens = 1}, {})));
}

TEST(IntakeTest, WakesTheEngineAndHandsOverInOrder) {
  Intake intake({.max_waiting_requests = 10, .max_waiting_tokens = 100});
  EXPECT_FALSE(IsReadable(intake.wake_fd()));
  for (uint64_t key : {1, 2}) {
    auto live = NewLive(key);
    ASSERT_TRUE(intake.Reserve(Intake::LoadOf(live->request), {}).ok());
    ASSERT_TRUE(intake.Push(&live).ok());
  }
  intake.Cancel(RequestKey(1), 77);
  EXPECT_TRUE(IsReadable(intake.wake_fd()));
  Intake::Batch batch;
  intake.Take(&batch);
  EXPECT_FALSE(IsReadable(intake.wake_fd()));
  ASSERT_EQ(batch.requests.size(), 2u);
  EXPECT_EQ(batch.requests[0]->request.key, RequestKey(1));
  ASSERT_EQ(batch.cancellations.size(), 1u);
  EXPECT_EQ(batch.cancellations[0].requested_ns, 77);
  intake.Cancel(RequestKey(5), 1);
  EXPECT_TRUE(IsReadable(intake.wake_fd()));
}

TEST(IntakeTest, AdoptsBeyondItsBoundsUntilItsEnd) {
  Intake intake({.max_waiting_requests = 1, .max_waiting_tokens = 100});
  auto waiting = NewLive(1), second = NewLive(2), running = NewLive(3), late = NewLive(4);
  running->scheduled_ns = 5;
  ASSERT_TRUE(intake.PushAdopted(&waiting, 0));
  intake.Close(absl::UnavailableError("draining"));
  ASSERT_TRUE(intake.PushAdopted(&second, 0));
  ASSERT_TRUE(intake.PushAdopted(&running, 0));
  EXPECT_TRUE(IsReadable(intake.wake_fd()));
  EXPECT_EQ(intake.num_waiting(), 2);  // not the one that has run
  intake.End(absl::UnavailableError("ended"));
  EXPECT_FALSE(intake.PushAdopted(&late, 0));
  EXPECT_NE(late, nullptr);
  Intake::Batch batch;
  intake.Take(&batch);
  EXPECT_EQ(batch.requests.size(), 3u);
  EXPECT_EQ(intake.Reserve({.num_sequences = 1}, {}).message(), "draining");
}

TEST(IntakeTest, AClosedIntakeGivesPlacesBack) {
  Intake intake({.max_waiting_requests = 10, .max_waiting_tokens = 100});
  auto live = NewLive(1);
  ASSERT_TRUE(intake.Reserve(Intake::LoadOf(live->request), {}).ok());
  intake.Close(absl::UnavailableError("first"));
  intake.Close(absl::UnavailableError("second"));
  EXPECT_EQ(intake.Push(&live).message(), "first");
  EXPECT_EQ(intake.Reserve({.num_sequences = 1}, {}).message(), "first");
  EXPECT_EQ(intake.num_waiting(), 0);
  EXPECT_TRUE(IsReadable(intake.wake_fd()));
}

TEST(IntakeTest, ATenantTakesItsShareOfTheBounds) {
  Intake intake({.max_waiting_requests = 10, .max_waiting_tokens = 100});
  const Tenant a = {.name = "a", .queue_share = 0.3}, b = {.name = "b", .queue_share = 0.7};
  const Intake::Arrival of_a = {.tenant = &a}, of_b = {.tenant = &b};
  constexpr Intake::Load kOne = {.num_sequences = 1, .num_tokens = 1};
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(intake.Reserve(kOne, of_a).ok());
  const absl::Status refused = intake.Reserve(kOne, of_a);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(refused.message(), "queue: 3 sequences of this tenant wait already; its limit is 3");
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(intake.Reserve(kOne, of_b).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(intake.Reserve(kOne, of_b)));
  intake.Leave(kOne, of_a);
  EXPECT_TRUE(intake.Reserve(kOne, of_a).ok());
  for (int i = 0; i < 3; ++i) intake.Leave(kOne, of_a);
  // Alone of its tenant, it is held to the bound in all.
  EXPECT_TRUE(intake.Reserve({.num_sequences = 1, .num_tokens = 90}, of_a).ok());
  EXPECT_EQ(intake.Reserve({.num_sequences = 1, .num_tokens = 2}, of_a).message(),
            "queue: 90 prompt tokens of this tenant wait already, 2 more exceed its limit of 30");
}

// Ten a second leave a queue of forty.
TEST(IntakeTest, AHopelessDeadlineIsRefusedAndToldWhenToComeAgain) {
  constexpr int64_t kSecond = 1'000'000'000;
  Intake intake({.max_waiting_requests = 40, .max_waiting_tokens = 1000});
  constexpr Intake::Load kOne = {.num_sequences = 1, .num_tokens = 1};
  const auto at = [](int64_t now_ns, std::optional<int64_t> left_ns = std::nullopt) {
    Intake::Arrival arrival = {.now_ns = now_ns};
    if (left_ns.has_value()) arrival.deadline_ns = now_ns + *left_ns;
    return arrival;
  };
  // Of nothing known, nothing is said.
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(intake.Reserve(kOne, at(0, 1)).ok());
  EXPECT_FALSE(intake.Reserve(kOne, at(0)).GetPayload(kRetryAfterPayload).has_value());
  for (int i = 1; i <= 10; ++i) intake.Leave(kOne, at(i * kSecond / 10));
  EXPECT_TRUE(intake.Reserve(kOne, at(kSecond)).ok());
  EXPECT_TRUE(intake.Reserve(kOne, at(kSecond, 2 * kSecond)).ok());
  const absl::Status hopeless = intake.Reserve(kOne, at(kSecond, kSecond));
  EXPECT_TRUE(absl::IsResourceExhausted(hopeless));
  EXPECT_EQ(hopeless.message(), "queue: requests wait about 3.2 s now; the deadline is in 1.0 s");
  EXPECT_EQ(std::string(hopeless.GetPayload(kRetryAfterPayload).value()), "3200000000");
}

}  // namespace
}  // namespace pagoda::engine
