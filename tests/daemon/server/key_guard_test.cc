#include "daemon/server/key_guard.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/service_under_test.h"

namespace pagoda::daemon {
namespace {

class KeyGuardTest : public ::testing::Test {
 protected:
  KeyGuard Guard(size_t max_addresses = 4096, size_t max_waiting = 4096) const {
    return KeyGuard({.num_free = 3,
                     .step = absl::Milliseconds(100),
                     .longest = absl::Seconds(1),
                     .max_addresses = max_addresses,
                     .max_waiting = max_waiting,
                     .clock = &clock_});
  }

  FakeClock clock_;
};

TEST_F(KeyGuardTest, EachMistakeBeyondTheFreeOnesWaitsLonger) {
  KeyGuard guard = Guard();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(guard.NoteWrongKey("a"), absl::ZeroDuration());
  for (int i = 1; i <= 10; ++i) EXPECT_EQ(guard.NoteWrongKey("a"), i * absl::Milliseconds(100));
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(guard.NoteWrongKey("a"), absl::Seconds(1));
  EXPECT_EQ(guard.NoteWrongKey("b"), absl::ZeroDuration());
  // One a second is forgiven, so who makes no more than that never waits for long.
  clock_.Advance(absl::Seconds(4));
  EXPECT_EQ(guard.NoteWrongKey("a"), absl::Milliseconds(700));
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(guard.NoteWrongKey("a"), absl::ZeroDuration());
}

TEST_F(KeyGuardTest, ForgetsTheAddressThatIsQuietForLongest) {
  KeyGuard guard = Guard(/*max_addresses=*/8);
  for (int i = 0; i < 5; ++i) guard.NoteWrongKey("loud");
  for (int i = 0; i < 10'000; ++i) {
    clock_.Advance(absl::Microseconds(1));
    if (i % 4 == 0) {
      EXPECT_GT(guard.NoteWrongKey("loud"), absl::ZeroDuration());
    }
    EXPECT_EQ(guard.NoteWrongKey(absl::StrCat("other ", i)), absl::ZeroDuration());
    EXPECT_LE(guard.num_addresses(), 8u);
  }
}

TEST_F(KeyGuardTest, AnswersInTheirTimeAndAllAtTheEnd) {
  KeyGuard guard = Guard(/*max_addresses=*/8, /*max_waiting=*/3);
  Mutex mutex;
  std::vector<int> answered;
  const auto answer = [&](int i) {
    return [&mutex, &answered, i] {
      MutexLock lock(&mutex);
      answered.push_back(i);
    };
  };
  const auto seen = [&] {
    MutexLock lock(&mutex);
    return answered;
  };
  guard.AnswerLater(absl::ZeroDuration(), answer(0));
  EXPECT_EQ(seen(), std::vector<int>{0});
  guard.AnswerLater(absl::Hours(3), answer(3));
  guard.AnswerLater(absl::Hours(2), answer(2));
  guard.AnswerLater(absl::Hours(4), answer(4));
  // No more can wait.
  guard.AnswerLater(absl::Hours(1), answer(1));
  EXPECT_EQ(seen(), (std::vector<int>{0, 1}));
  EXPECT_EQ(guard.num_waiting(), 3u);
  guard.Stop();
  EXPECT_EQ(seen(), (std::vector<int>{0, 1, 2, 3, 4}));
  guard.AnswerLater(absl::Hours(1), answer(5));
  EXPECT_EQ(seen().back(), 5);
  guard.Stop();
}

TEST_F(KeyGuardTest, AnAnswerComesWhenItsTimeIsOver) {
  KeyGuard guard(KeyGuard::Options{});
  std::atomic<bool> is_answered{false};
  const absl::Time start = absl::Now();
  guard.AnswerLater(absl::Milliseconds(20), [&] { is_answered = true; });
  EXPECT_TRUE(Eventually([&] { return is_answered.load(); }));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(20));
}

TEST(AddressOfPeerTest, IsWhatOneUserHas) {
  for (const auto& [peer, address] : std::vector<std::pair<const char*, const char*>>{
           {"ipv4:192.0.2.1:4711", "192.0.2.1"},
           {"ipv6:%5B::1%5D:4711", "::/64"},
           {"ipv6:[2001:db8:1:2:3:4:5:6]:80", "2001:db8:1:2::/64"},
           {"ipv6:%5B2001:db8:1:2::9%5D:80", "2001:db8:1:2::/64"},
           {"ipv6:[::ffff:192.0.2.1]:80", "192.0.2.1"},
           {"ipv6:[fe80::1%25eth0]:80", "fe80::/64"},
           {"ipv6:[nonsense]:80", "nonsense"},
           {"unix:/run/pagoda.sock", "unix"},
           {"unix:", "unix"},
           {"inproc", "inproc"},
           {"", ""}}) {
    EXPECT_EQ(AddressOfPeer(peer), address) << peer;
  }
}

}  // namespace
}  // namespace pagoda::daemon
